/** The first page: is everything well, how full is it, what does it do, what is protected. */

import type { ComponentChildren } from 'preact';
import { events, following } from '../api/events';
import { KEPT_RATES, live, liveProblem, poolRates } from '../api/live';
import { useResource } from '../api/resource';
import type { Health, Pool, Status, Task, Volume } from '../api/schema';
import { retryStreams } from '../api/stream';
import { fullDay } from '../lib/filling';
import { byteRate, bytes, latency, percent, perSecond } from '../lib/format';
import { parseTime } from '../lib/time';
import { Badge, Card, Empty, Failure, Meter, PageHead, Skeleton, Time } from '../parts/basics';
import { Chart } from '../parts/chart';
import { type Column, Table } from '../parts/table';
import { volumePath } from '../router';
import { EventLine, EventsState } from './events';
import { HistoryText } from './history-text';
import { Problems } from './problems';
import { TaskLine } from './tasks';

export function OverviewPage() {
  const health = useResource<Health>('/health', 15);
  return (
    <>
      <PageHead title="Overview" badge={health.data && <HealthBadge health={health.data} />} />
      {health.error && !health.data && (
        <Failure what="The health could not be read." error={health.error} retry={health.reload} />
      )}
      {health.data && (health.data.problems?.length ?? 0) > 0 && (
        <Problems problems={health.data.problems ?? []} />
      )}
      <Figures />
      <Rates />
      <div class="grid-2">
        <RunningTasks />
        <LastEvents />
      </div>
      <Protection />
    </>
  );
}

function HealthBadge({ health }: { health: Health }) {
  if (health.state === 'healthy') return <Badge tone="a">healthy</Badge>;
  return (
    <Badge tone={health.state === 'poisoned' ? 'full' : 'b'}>
      {health.state === 'poisoned' ? 'refuses writes' : 'needs attention'}
    </Badge>
  );
}

function Figure({
  name,
  value,
  unit,
  children,
}: {
  name: string;
  value: string;
  unit?: string;
  children?: ComponentChildren;
}) {
  return (
    <section class="card figure">
      <h2 class="soft small">{name}</h2>
      <strong>
        {value} {unit && <small>{unit}</small>}
      </strong>
      {children}
    </section>
  );
}

function Figures() {
  const pool = useResource<Pool>('/pool', 15).data;
  const rates = live.value?.pool;
  return (
    <div class="grid-4">
      <Figure
        name="Free space"
        value={pool ? bytes(pool.available) : '–'}
        unit={pool && `of ${bytes(pool.capacity)}`}
      >
        {pool && (
          <Meter
            part={pool.used}
            whole={pool.capacity}
            label={`${percent(pool.used, pool.capacity)} of the pool is used`}
          />
        )}
        {pool?.filling?.full_at && <span class="soft">{fullDay(pool.filling)}</span>}
      </Figure>
      <Figure name="Reads" value={rates ? perSecond(rates.reads) : '–'} unit="per second">
        <span class="soft">{rates && byteRate(rates.read_bytes)}</span>
      </Figure>
      <Figure name="Writes" value={rates ? perSecond(rates.writes) : '–'} unit="per second">
        <span class="soft">{rates && byteRate(rates.write_bytes)}</span>
      </Figure>
      <Figure name="Write latency" value={rates ? latency(rates.write_p99) : '–'} unit="99th percentile">
        <span class="soft">{rates && `read ${latency(rates.read_p99)}`}</span>
      </Figure>
    </div>
  );
}

function Rates() {
  const points = poolRates.value;
  const times = points.map(({ time }) => parseTime(time));
  return (
    <Card title="The last five minutes">
      {liveProblem.value && (
        <Failure what="The rates can't be followed." error={liveProblem.value} retry={retryStreams} />
      )}
      {points.length < 2 && !liveProblem.value && (
        <div class="charts-space">
          <Skeleton lines={5} />
        </div>
      )}
      {points.length >= 2 && (
        <div class="inside charts">
          <Chart
            title="Data"
            binary
            length={KEPT_RATES}
            times={times}
            format={byteRate}
            height={132}
            series={[
              { name: 'Read', tone: 'a', values: points.map(({ read_bytes }) => read_bytes) },
              { name: 'Written', tone: 'b', values: points.map(({ write_bytes }) => write_bytes) },
            ]}
          />
          <Chart
            title="Latency, 99th percentile"
            length={KEPT_RATES}
            times={times}
            format={latency}
            height={132}
            series={[
              { name: 'Read', tone: 'a', values: points.map(({ read_p99 }) => read_p99) },
              { name: 'Write', tone: 'b', values: points.map(({ write_p99 }) => write_p99) },
            ]}
          />
        </div>
      )}
    </Card>
  );
}

interface Protected {
  volume: Volume;
  last: string | null;
  /** Schedules of the volume whose last run failed. */
  failing: string[];
}

const PROTECTION: Column<Protected>[] = [
  {
    name: 'Volume',
    class: 'clip',
    cell: ({ volume: { name } }) => <a href={volumePath(name)}>{name}</a>,
    sort: ({ volume }) => volume.name,
  },
  {
    name: 'History',
    cell: ({ volume }) => <HistoryText window={volume.history} kept={Boolean(volume.cdp)} />,
    sort: ({ volume }) => volume.history?.held_seconds ?? -1,
  },
  {
    name: 'Last snapshot',
    cell: ({ last }) => (last ? <Time at={last} /> : <span class="soft">none</span>),
    sort: ({ last }) => last ?? '',
  },
];

/** A column that appears while a schedule fails. */
const FAILING: Column<Protected> = {
  name: 'Last run failed',
  cell: ({ failing }) =>
    failing.length > 0 && (
      <a href="/schedules">
        <Badge tone="b">{failing.join(', ')}</Badge>
      </a>
    ),
  sort: ({ failing }) => -failing.length,
};

function Protection() {
  const volumes = useResource<Volume[]>('/volumes', 30);
  const status = useResource<Status>('/status', 30).data;
  const protection = new Map(status?.protection?.map((of) => [of.volume, of]));
  const rows = volumes.data?.map((volume) => {
    const of = protection.get(volume.name);
    return { volume, last: of?.last_snapshot ?? null, failing: of?.failing_schedules ?? [] };
  });
  return (
    <Card title="Protection">
      {volumes.error && !rows && (
        <Failure what="The volumes could not be read." error={volumes.error} retry={volumes.reload} />
      )}
      {!rows && !volumes.error && <Skeleton />}
      {rows?.length === 0 && <Empty title="No volumes" action={<a href="/volumes">Create a volume</a>} />}
      {rows && rows.length > 0 && (
        <Table
          label="Protection of each volume"
          columns={rows.some(({ failing }) => failing.length > 0) ? [...PROTECTION, FAILING] : PROTECTION}
          rows={rows}
          keyOf={({ volume }) => volume.uuid}
          sortBy="Volume"
        />
      )}
    </Card>
  );
}

function RunningTasks() {
  const tasks = useResource<Task[]>('/tasks', 3).data?.filter((task) => !task.ended);
  return (
    <Card title="Tasks" actions={<a href="/tasks">All tasks</a>}>
      {!tasks && <Skeleton />}
      {tasks?.length === 0 && <p class="inside soft">Nothing runs in the background.</p>}
      <ul class="list">
        {tasks?.slice(0, 6).map((task) => (
          <TaskLine key={task.id} task={task} />
        ))}
      </ul>
    </Card>
  );
}

function LastEvents() {
  return (
    <Card title="Last events" actions={<a href="/events">All events</a>}>
      <EventsState />
      {following.value.known && events.value.length === 0 && (
        <p class="inside soft">The server has reported no event yet.</p>
      )}
      <ul class="list">
        {events.value.slice(0, 8).map((event) => (
          <EventLine key={event.id} event={event} />
        ))}
      </ul>
    </Card>
  );
}
