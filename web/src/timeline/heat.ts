/** Bytes by time and part of the volume, as a map of colours. Its first row is the start of the volume. */

import type { TimelineData } from './data';
import type { Strip } from './layout';
import type { Palette } from './palette';
import { type Span, toX } from './scale';

interface Picture {
  data: TimelineData;
  colour: string;
  canvas: HTMLCanvasElement;
}

let cached: Picture | null = null;

/** The map with one pixel for each bucket and part. It is made once for each answer. */
function pictureOf(data: TimelineData, palette: Palette): HTMLCanvasElement | null {
  const { regions } = data;
  if (!regions) return null;
  if (cached?.data === data && cached.colour === palette.a) return cached.canvas;
  const canvas = document.createElement('canvas');
  canvas.width = data.written.length;
  canvas.height = regions.count;
  const context = canvas.getContext('2d');
  if (!context) return null;
  const image = context.createImageData(canvas.width, canvas.height);
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(palette.a.slice(at, at + 2), 16));
  const highest = regions.written.reduce((most, bytes) => Math.max(most, bytes), 1);
  for (const [index, bytes] of regions.written.entries()) {
    if (bytes === 0) continue;
    const [bucket, region] = [Math.floor(index / regions.count), index % regions.count];
    image.data.set(
      [red ?? 0, green ?? 0, blue ?? 0, 20 + 235 * Math.sqrt(bytes / highest)],
      (region * canvas.width + bucket) * 4,
    );
  }
  context.putImageData(image, 0, 0);
  cached = { data, colour: palette.a, canvas };
  return canvas;
}

export function drawHeat(
  context: CanvasRenderingContext2D,
  data: TimelineData | null,
  place: { strip: Strip; left: number; plot: number; span: Span },
  palette: Palette,
): void {
  const { strip, left, plot, span } = place;
  context.fillStyle = palette.sunken;
  context.fillRect(left, strip.top, plot, strip.height);
  const picture = data && pictureOf(data, palette);
  if (!data || !picture) return;
  const x = left + toX(data.span.from, span, plot);
  const end = left + toX(data.span.from + data.bucket * data.written.length, span, plot);
  context.save();
  context.beginPath();
  context.rect(left, strip.top, plot, strip.height);
  context.clip();
  context.imageSmoothingEnabled = false;
  context.drawImage(picture, x, strip.top, end - x, strip.height);
  context.restore();
}
