/** Gives the focus to the page's content if what had it is gone, so that Tab goes on from there. */
export function rescueFocus(): void {
  // An element loses the focus only after the page has changed.
  requestAnimationFrame(() => {
    if (document.activeElement === document.body) document.querySelector<HTMLElement>('main')?.focus();
  });
}
