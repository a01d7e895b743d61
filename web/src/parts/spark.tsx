/** A small curve without axes. The text beside it gives the present value. */

interface SparkProps {
  values: readonly number[];
  label: string;
  width?: number;
  height?: number;
  /** Number of points across the whole width. Fewer values begin further right. */
  points?: number;
}

export function Spark({ values, label, width = 96, height = 24, points = 60 }: SparkProps) {
  const top = Math.max(1, ...values);
  const step = width / (points - 1);
  const left = width - (values.length - 1) * step;
  const line = values.map(
    (value, index) =>
      `${(left + index * step).toFixed(1)} ${(height - (value / top) * (height - 2) - 1).toFixed(1)}`,
  );
  if (values.length < 2) return <svg class="spark" width={width} height={height} aria-hidden="true" />;
  return (
    <svg
      class="spark"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      role="img"
      aria-label={label}
    >
      <path class="area" d={`M${left} ${height}L${line.join('L')}L${width} ${height}Z`} />
      <path d={`M${line.join('L')}`} />
    </svg>
  );
}
