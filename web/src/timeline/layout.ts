/** Where the strips of a timeline lie, in pixels from the top of its canvas. */

export interface Strip {
  top: number;
  height: number;
}

export interface Layout {
  width: number;
  height: number;
  /** Left edge and width of the part that shows time. */
  left: number;
  plot: number;
  bars: Strip;
  heat: Strip | null;
  axis: Strip;
  lanes: Strip[];
}

export const LANES = ['Snapshots', 'Marks', 'Branches', 'Flushes', 'Anchors'] as const;

const LANE = 24;
const AXIS = 28;

/** Below this width, the names of lanes lie over the lanes instead of left of them. */
const NARROW = 640;

export function layoutOf(width: number, heat: boolean): Layout {
  const left = width < NARROW ? 0 : 88;
  const bars = { top: 0, height: width < NARROW ? 150 : 208 };
  const heatStrip = heat ? { top: bars.height + 8, height: 112 } : null;
  const axisTop = heatStrip ? heatStrip.top + heatStrip.height : bars.height;
  const first = axisTop + AXIS + 4;
  return {
    width,
    height: first + LANES.length * LANE + 4,
    left,
    plot: Math.max(width - left, 10),
    bars,
    heat: heatStrip,
    axis: { top: axisTop, height: AXIS },
    lanes: LANES.map((_, index) => ({ top: first + index * LANE, height: LANE })),
  };
}
