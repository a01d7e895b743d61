/** One tooltip for the whole page. An element with `data-tip` shows it on hover and on focus. */

import { useEffect, useState } from 'preact/hooks';

interface Shown {
  text: string;
  left: number;
  top: number;
  below: boolean;
}

function placeOf(element: HTMLElement): Shown | null {
  const text = element.dataset.tip;
  if (!text) return null;
  const box = element.getBoundingClientRect();
  const below = box.top < 56;
  const left = Math.max(8, Math.min(box.left, innerWidth - 240));
  return { text, left, top: below ? box.bottom + 6 : box.top - 6, below };
}

export function Tip() {
  const [shown, setShown] = useState<Shown | null>(null);
  useEffect(() => {
    const show = (event: Event) => {
      const element = (event.target as Element | null)?.closest?.<HTMLElement>('[data-tip]');
      const focused = event.type !== 'focusin' || element?.matches(':focus-visible');
      setShown(element && focused ? placeOf(element) : null);
    };
    const hide = () => setShown(null);
    const onKey = (event: KeyboardEvent) => event.key === 'Escape' && hide();
    document.addEventListener('pointerover', show);
    document.addEventListener('focusin', show);
    document.addEventListener('scroll', hide, true);
    document.addEventListener('keydown', onKey);
    return () => {
      document.removeEventListener('pointerover', show);
      document.removeEventListener('focusin', show);
      document.removeEventListener('scroll', hide, true);
      document.removeEventListener('keydown', onKey);
    };
  }, []);
  if (!shown) return null;
  const transform = shown.below ? undefined : 'translateY(-100%)';
  return (
    <div class="tip" role="tooltip" style={{ left: `${shown.left}px`, top: `${shown.top}px`, transform }}>
      {shown.text}
    </div>
  );
}
