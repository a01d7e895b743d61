/** Curves over time with a scale, and the values under the pointer. */

import { useRef, useState } from 'preact/hooks';
import { clockTime } from '../lib/time';
import { ticksOf } from '../timeline/axis';

export interface Series {
  name: string;
  tone: 'a' | 'b';
  /** Null values leave a gap. */
  values: (number | null | undefined)[];
}

/** The index of the time that is nearest to another. */
function nearest(times: number[], time: number): number {
  const after = times.findIndex((candidate) => candidate >= time);
  if (after <= 0) return after < 0 ? times.length - 1 : 0;
  return (times[after] ?? 0) - time < time - (times[after - 1] ?? 0) ? after : after - 1;
}

/** A value as text, or a dash where there is none. */
function valueText(value: number | null | undefined, format: ChartProps['format']): string {
  return value === null || value === undefined ? '–' : format(value);
}

interface ChartProps {
  title: string;
  times: number[];
  series: Series[];
  format: (value: number) => string;
  height?: number;
  /** True for bytes, whose scale ends at a round number of KiB, MiB and so on. */
  binary?: boolean;
  /** Milliseconds across the whole width. Fewer points begin further right. */
  length?: number;
}

const WIDTH = 640;
const TOP = 8;
const BOTTOM = 22;

/** The smallest round number (1, 2 or 5 times a power of ten) of at least `value`. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value * 0.999) ?? value;
}

/** The smallest round number of bytes, in the unit that suits it. */
export function roundUpBytes(value: number): number {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024)));
  return roundUp(value / unit) * unit;
}

interface Frame {
  from: number;
  to: number;
  top: number;
  height: number;
}

const xOf = ({ from, to }: Frame, time: number) => ((time - from) / Math.max(to - from, 1)) * WIDTH;
const yOf = ({ top, height }: Frame, value: number) => TOP + (1 - value / top) * (height - TOP - BOTTOM);

function pathOf(frame: Frame, times: number[], values: Series['values']): string {
  let path = '';
  let pen = false;
  for (const [index, value] of values.entries()) {
    if (value !== null && value !== undefined)
      path += `${pen ? 'L' : 'M'}${xOf(frame, times[index] ?? 0).toFixed(1)} ${yOf(frame, value).toFixed(1)}`;
    pen = value !== null && value !== undefined;
  }
  return path;
}

export function Chart({ title, times, series, format, height = 170, binary, length }: ChartProps) {
  const element = useRef<SVGSVGElement>(null);
  const [index, setIndex] = useState<number | null>(null);
  const highest = Math.max(0, ...series.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const to = times.at(-1) ?? 1;
  const frame = {
    from: length ? to - length : (times[0] ?? 0),
    to,
    top: (binary ? roundUpBytes : roundUp)(highest),
    height,
  };
  const shown = index ?? times.length - 1;
  const point = (event: PointerEvent) => {
    const box = element.current?.getBoundingClientRect();
    if (box)
      setIndex(
        nearest(times, frame.from + ((event.clientX - box.left) / box.width) * (frame.to - frame.from)),
      );
  };
  const values = series.map(({ name, values: all }) => `${name} ${valueText(all.at(-1), format)}`).join(', ');
  return (
    <figure class="chart">
      <figcaption class="line">
        <h3>{title}</h3>
        <span class="soft small push nowrap">{index !== null && clockTime(times[shown] ?? 0)}</span>
        <span class="chart-values">
          {series.map(({ name, tone, values: all }) => (
            <span key={name} class={`chart-value small ${tone}`}>
              {name} <strong>{valueText(all[shown], format)}</strong>
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot">
        <svg
          ref={element}
          viewBox={`0 0 ${WIDTH} ${height}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}: ${values}`}
          style={{ height: `${height}px` }}
          onPointerMove={point}
          onPointerLeave={() => setIndex(null)}
        >
          <Grid frame={frame} />
          {series.map(({ name, tone, values: all }) => (
            <path key={name} class={`curve ${tone}`} d={pathOf(frame, times, all)} />
          ))}
          {index !== null && (
            <line
              class="cursor"
              x1={xOf(frame, times[shown] ?? 0)}
              x2={xOf(frame, times[shown] ?? 0)}
              y1={TOP}
              y2={height - BOTTOM}
            />
          )}
        </svg>
        <Labels frame={frame} format={format} />
      </div>
    </figure>
  );
}

function Grid({ frame }: { frame: Frame }) {
  return (
    <>
      {[0, 0.5, 1].map((share) => (
        <line
          key={share}
          class="grid"
          x1="0"
          x2={WIDTH}
          y1={yOf(frame, frame.top * share)}
          y2={yOf(frame, frame.top * share)}
        />
      ))}
    </>
  );
}

/** Labels outside of the drawing, because the drawing is stretched. */
function Labels({ frame, format }: { frame: Frame; format: (value: number) => string }) {
  const ticks = ticksOf(frame, WIDTH, 110).filter(({ time }) => xOf(frame, time) < WIDTH * 0.88);
  return (
    <div class="chart-labels small soft" aria-hidden="true">
      <span style={{ top: `${TOP - 2}px` }}>{format(frame.top)}</span>
      {ticks.map(({ time, label }) => (
        <span key={time} style={{ left: `${(xOf(frame, time) / WIDTH) * 100}%`, bottom: 0 }}>
          {label}
        </span>
      ))}
    </div>
  );
}
