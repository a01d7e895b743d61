/** What a volume does now, and in the last minutes; and which parts of it are busy. */

import { useEffect, useState } from 'preact/hooks';
import { apiPath } from '../../api/client';
import { useResource } from '../../api/resource';
import type { Activity, Volume, VolumeStatistics } from '../../api/schema';
import { byteRate, bytes, count, latency, perSecond } from '../../lib/format';
import { parseTime } from '../../lib/time';
import { Button, Card, Failure, Pairs, Skeleton } from '../../parts/basics';
import { Chart } from '../../parts/chart';

type Range = '5m' | '1h';

const REFRESH: Record<Range, number> = { '5m': 2, '1h': 10 };

export function ActivityTab({ volume }: { volume: Volume }) {
  const [range, setRange] = useState<Range>('5m');
  const { data, error, reload } = useResource<Activity>(
    `${apiPath`/volumes/${volume.name}/activity`}?of=${range}`,
    REFRESH[range],
  );
  const [shown, setShown] = useState<Activity | undefined>(undefined);
  // The charts keep the last answer while the other range is on its way, so nothing jumps.
  useEffect(() => {
    if (data) setShown(data);
  }, [data]);
  return (
    <>
      <Card
        title="Activity"
        actions={
          <>
            <Button pressed={range === '5m'} onClick={() => setRange('5m')}>
              5 minutes
            </Button>
            <Button pressed={range === '1h'} onClick={() => setRange('1h')}>
              1 hour
            </Button>
          </>
        }
      >
        {error && !shown && <Failure what="The activity could not be read." error={error} retry={reload} />}
        {!shown && !error && <Skeleton lines={8} />}
        {shown && <Charts activity={shown} />}
      </Card>
      <Regions volume={volume} />
    </>
  );
}

function Charts({ activity: { points } }: { activity: Activity }) {
  const times = points.map(({ time }) => parseTime(time));
  return (
    <div class="inside charts">
      <Chart
        title="Requests per second"
        times={times}
        format={perSecond}
        series={[
          { name: 'Reads', tone: 'a', values: points.map(({ reads }) => reads) },
          { name: 'Writes', tone: 'b', values: points.map(({ writes }) => writes) },
        ]}
      />
      <Chart
        title="Data"
        binary
        times={times}
        format={byteRate}
        series={[
          { name: 'Read', tone: 'a', values: points.map(({ read_bytes }) => read_bytes) },
          { name: 'Written', tone: 'b', values: points.map(({ write_bytes }) => write_bytes) },
        ]}
      />
      <Chart
        title="Latency, 99th percentile"
        times={times}
        format={latency}
        series={[
          { name: 'Read', tone: 'a', values: points.map(({ read_p99 }) => read_p99) },
          { name: 'Write', tone: 'b', values: points.map(({ write_p99 }) => write_p99) },
        ]}
      />
      <Chart
        title="Requests in flight"
        times={times}
        format={perSecond}
        series={[{ name: 'In flight', tone: 'a', values: points.map(({ in_flight }) => in_flight) }]}
      />
    </div>
  );
}

function Regions({ volume }: { volume: Volume }) {
  const { data, error, reload } = useResource<VolumeStatistics>(apiPath`/volumes/${volume.name}/stats`, 10);
  return (
    <Card title="Where the volume is used">
      {error && !data && <Failure what="The statistics could not be read." error={error} retry={reload} />}
      {!data && !error && <Skeleton lines={3} />}
      {data && (
        <div class="inside stack">
          <RegionStrip
            name="Reads"
            values={data.regions.map(({ reads }) => reads)}
            tone="a"
            size={volume.size}
          />
          <RegionStrip
            name="Writes"
            values={data.regions.map(({ writes }) => writes)}
            tone="b"
            size={volume.size}
          />
          <Pairs
            of={[
              ['Part', `${bytes(data.region_size)} each, since the server's start`],
              ['Index', `${bytes(data.index.bytes)} for ${count(data.index.chunks)} chunks`],
            ]}
          />
        </div>
      )}
    </Card>
  );
}

function RegionStrip({
  name,
  values,
  tone,
  size,
}: {
  name: string;
  values: number[];
  tone: 'a' | 'b';
  size: number;
}) {
  const highest = Math.max(1, ...values);
  const each = 100 / Math.max(values.length, 1);
  return (
    <div class="stack tight">
      <span class="line">
        <h3>{name}</h3>
        <span class="soft small push">0 to {bytes(size)}</span>
      </span>
      <svg
        class={`region-strip ${tone}`}
        viewBox="0 0 100 10"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${name} by part of the volume`}
      >
        {values.map((value, index) => (
          <rect
            key={index}
            x={index * each}
            width={each * 0.92}
            height="10"
            fill-opacity={value === 0 ? 0.05 : 0.1 + 0.9 * Math.sqrt(value / highest)}
          />
        ))}
      </svg>
    </div>
  );
}
