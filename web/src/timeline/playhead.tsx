/** The playhead and the second handle, above the canvas. */

import { now } from '../lib/clock';
import { clockTime, shortDay } from '../lib/time';
import { digitsOf } from './axis';
import { onPlayheadKey } from './keys';
import type { Layout } from './layout';
import { lengthOf, toX } from './scale';
import type { TimelineState } from './state';
import { valueText } from './words';

interface HandleProps {
  state: TimelineState;
  layout: Layout;
}

function xOf(state: TimelineState, layout: Layout, time: number): number {
  return layout.left + toX(time, state.span.value, layout.plot);
}

function labelOf(state: TimelineState, time: number): string {
  const day = lengthOf(state.span.value) > 43_200_000 ? `${shortDay(time)} ` : '';
  return day + clockTime(time, digitsOf(state.span.value));
}

/** Half of a label's width in pixels, so that a label at an edge stays inside. */
const halfWidth = (text: string) => 9 + text.length * 3.4;

function Label({ x, layout, text }: { x: number; layout: Layout; text: string }) {
  const shift = Math.max(layout.left + halfWidth(text) - x, Math.min(0, layout.width - halfWidth(text) - x));
  return (
    <span class="playhead-label" style={{ transform: `translateX(calc(-50% + ${shift}px))` }}>
      {text}
    </span>
  );
}

export function Playhead({ state, layout }: HandleProps) {
  const moment = state.moment.value;
  const present = now.value;
  const time = moment ?? present;
  const x = Math.min(xOf(state, layout, time), layout.width);
  const begins = state.whole.value?.begins ?? state.span.value.from;
  const outside = x < layout.left - 1;
  const onKey = (event: KeyboardEvent) => {
    if (!onPlayheadKey(event, state)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class={`playhead ${outside ? 'outside' : ''} ${moment === null ? 'present' : ''}`}
      style={{ transform: `translateX(${x}px)`, height: `${layout.height}px` }}
      role="slider"
      tabIndex={0}
      aria-label="Moment"
      aria-orientation="horizontal"
      aria-valuemin={Math.floor(begins / 1000)}
      aria-valuemax={Math.floor(present / 1000)}
      aria-valuenow={Math.floor(time / 1000)}
      aria-valuetext={valueText(state, present)}
      aria-keyshortcuts="ArrowLeft ArrowRight Shift+ArrowLeft Shift+ArrowRight Control+ArrowLeft Control+ArrowRight Home End + - T M B"
      onKeyDown={onKey}
    >
      <Label x={x} layout={layout} text={moment === null ? 'Now' : labelOf(state, time)} />
    </div>
  );
}

/** The second handle, and the stretch between the two. */
export function SecondHandle({ state, layout }: HandleProps) {
  const second = state.second.value;
  if (second === null) return null;
  const first = xOf(state, layout, state.moment.value ?? now.value);
  const x = Math.max(layout.left, Math.min(xOf(state, layout, second), layout.width));
  const left = Math.max(layout.left, Math.min(first, x));
  const right = Math.min(layout.width, Math.max(first, x));
  return (
    <>
      <div
        class="stretch"
        style={{
          transform: `translateX(${left}px)`,
          width: `${Math.max(0, right - left)}px`,
          height: `${layout.axis.top}px`,
        }}
      />
      <div class="playhead second" style={{ transform: `translateX(${x}px)`, height: `${layout.height}px` }}>
        <Label x={x} layout={layout} text={labelOf(state, second)} />
      </div>
    </>
  );
}
