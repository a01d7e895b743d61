/** Mouse, pen and fingers on the timeline: scrub, pan, zoom. */

import type { Layout } from './layout';
import { lengthOf, toTime, toX } from './scale';
import type { TimelineState } from './state';

/** Zoom for each pixel of a wheel's turn. */
const WHEEL_ZOOM = 0.0022;

/** A pinch on a touch pad arrives as a wheel with Ctrl and much smaller turns. */
const PINCH_ZOOM = 0.011;

const LINE_PIXELS = 16;
const GRIP = 9;

export class Pointers {
  private readonly down = new Map<number, number>();
  private drag: ((x: number) => void) | null = null;

  constructor(
    private readonly element: HTMLElement,
    private readonly state: TimelineState,
    private readonly layout: () => Layout,
  ) {
    element.addEventListener('wheel', this.onWheel, { passive: false });
    element.addEventListener('pointerdown', this.onDown);
    element.addEventListener('pointermove', this.onMove);
    element.addEventListener('pointerup', this.onUp);
    element.addEventListener('pointercancel', this.onUp);
    element.addEventListener('dblclick', this.onDouble);
  }

  dispose(): void {
    this.element.removeEventListener('wheel', this.onWheel);
    this.element.removeEventListener('pointerdown', this.onDown);
    this.element.removeEventListener('pointermove', this.onMove);
    this.element.removeEventListener('pointerup', this.onUp);
    this.element.removeEventListener('pointercancel', this.onUp);
    this.element.removeEventListener('dblclick', this.onDouble);
  }

  /** Distance of a pointer from the left edge of the plot. */
  private xOf(event: MouseEvent): number {
    return event.clientX - this.element.getBoundingClientRect().left - this.layout().left;
  }

  private timeUnder(x: number): number {
    return toTime(x, this.state.span.peek(), this.layout().plot);
  }

  private onWheel = (event: WheelEvent): void => {
    event.preventDefault();
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PIXELS : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
      this.state.pan(sideways * unit);
      return;
    }
    const speed = event.ctrlKey ? PINCH_ZOOM : WHEEL_ZOOM;
    this.state.zoom(Math.exp(event.deltaY * unit * speed), this.timeUnder(this.xOf(event)));
  };

  private onDown = (event: PointerEvent): void => {
    if (event.button > 1) return;
    const x = this.xOf(event);
    this.down.set(event.pointerId, x);
    this.element.setPointerCapture(event.pointerId);
    if (this.down.size === 2) this.drag = this.pinch();
    else if (this.down.size === 1) this.drag = this.dragFrom(event, x);
    this.drag?.(x);
  };

  private onMove = (event: PointerEvent): void => {
    if (!this.down.has(event.pointerId)) return;
    const x = this.xOf(event);
    this.down.set(event.pointerId, x);
    this.drag?.(x);
  };

  private onUp = (event: PointerEvent): void => {
    this.down.delete(event.pointerId);
    if (this.down.size === 0) this.drag = null;
  };

  private onDouble = (event: MouseEvent): void => {
    const { from, to } = this.state.span.peek();
    const time = this.timeUnder(this.xOf(event));
    this.state.glide({ from: time - (time - from) / 4, to: time + (to - time) / 4 });
  };

  /** The axis pans, as Shift and the middle button do. Everywhere else a drag moves a handle. */
  private dragFrom(event: PointerEvent, start: number): (x: number) => void {
    const { state } = this;
    const y = event.clientY - this.element.getBoundingClientRect().top;
    const { axis } = this.layout();
    const onAxis = y >= axis.top && y <= axis.top + axis.height;
    if (onAxis || event.shiftKey || event.button === 1) {
      let last = start;
      return (x) => {
        state.pan(last - x);
        last = x;
      };
    }
    const second = state.second.peek();
    if (second !== null && Math.abs(toX(second, state.span.peek(), this.layout().plot) - start) < GRIP) {
      return (x) => {
        state.second.value = Math.min(state.timeAt(x), state.limits().to);
      };
    }
    return (x) => state.moveTo(state.timeAt(Math.max(0, Math.min(x, this.layout().plot))));
  }

  /** Two fingers hold the two times that were under them. */
  private pinch(): () => void {
    const held = [...this.down].slice(0, 2).map(([id, x]) => ({ id, time: this.timeUnder(x) }));
    return () => {
      const [one, other] = held;
      const [a, b] = [this.down.get(one?.id ?? -1), this.down.get(other?.id ?? -1)];
      if (!one || !other || a === undefined || b === undefined || Math.abs(a - b) < 8) return;
      const perPixel = Math.abs((other.time - one.time) / (b - a));
      const from = one.time - a * perPixel;
      const { state } = this;
      if (Number.isFinite(from) && lengthOf(state.span.peek()) > 0)
        state.setSpan({ from, to: from + perPixel * this.layout().plot });
    };
  }
}
