/** The colours of the canvases, read from the style sheet's tokens. */

export interface Palette {
  paper: string;
  surface: string;
  sunken: string;
  line: string;
  lineStrong: string;
  ink: string;
  inkSoft: string;
  a: string;
  aFaint: string;
  aWash: string;
  b: string;
  bBright: string;
  /** Colours from "compresses well" to "does not compress". */
  ramp: string[];
  font: string;
}

const STEPS = 24;

/** A compressibility of this much is ordinary for data that compresses badly, such as media. */
const ORDINARY = 0.35;

export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element);
  const token = (name: string) => style.getPropertyValue(name).trim();
  const [a, b] = [token('--a'), token('--b-bright')];
  return {
    paper: token('--paper'),
    surface: token('--surface'),
    sunken: token('--sunken'),
    line: token('--line'),
    lineStrong: token('--line-strong'),
    ink: token('--ink'),
    inkSoft: token('--ink-soft'),
    a,
    aFaint: token('--a-faint'),
    aWash: token('--a-wash'),
    b: token('--b'),
    bBright: b,
    ramp: Array.from({ length: STEPS + 1 }, (_, step) => mix(a, b, smooth(step / STEPS))),
    font: style.fontFamily,
  };
}

/** Ordinary compressibility stays close to the first colour, so that what stands out is unusual. */
function smooth(ratio: number): number {
  const above = Math.max(0, (ratio - ORDINARY) / (1 - ORDINARY));
  return 0.08 * Math.min(ratio / ORDINARY, 1) * (1 - above) + above;
}

function mix(one: string, other: string, share: number): string {
  const [first, second] = [channels(one), channels(other)];
  const part = (index: number) =>
    Math.round((first[index] ?? 0) * (1 - share) + (second[index] ?? 0) * share);
  return `rgb(${part(0)} ${part(1)} ${part(2)})`;
}

/** Red, green and blue of a colour such as #1d5fb8. */
function channels(colour: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
}

/** The colour of a stretch: stored bytes for each written byte, from 0 to 1. */
export function rampColour(palette: Palette, stored: number, written: number): string {
  const ratio = written > 0 ? Math.min(stored / written, 1) : 0;
  return palette.ramp[Math.round(ratio * STEPS)] ?? palette.a;
}

/** A fill of thin diagonal lines, for times that can't be recovered. */
export function hatch(context: CanvasRenderingContext2D, colour: string): CanvasPattern | string {
  const size = 8;
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const lines = tile.getContext('2d');
  if (!lines) return colour;
  lines.strokeStyle = colour;
  lines.lineWidth = 1;
  lines.beginPath();
  for (const shift of [-size, 0, size]) {
    lines.moveTo(shift, size);
    lines.lineTo(shift + size, 0);
  }
  lines.stroke();
  return context.createPattern(tile, 'repeat') ?? colour;
}
