/** Groups of volumes, and the schedules that take their snapshots. */

import { apiPath, patch } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Group, Schedule } from '../api/schema';
import { may } from '../api/session';
import { now } from '../lib/clock';
import { plural } from '../lib/format';
import { keptBy, nextRuns, pastRuns, RULES, type Rule } from '../lib/retention';
import { DAY, duration } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, PageHead, Pairs, Skeleton, Time } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { volumePath } from '../router';
import {
  CreateGroupDialog,
  CreateScheduleDialog,
  DeleteGroupDialog,
  DeleteScheduleDialog,
} from './schedule-dialogs';

export function SchedulesPage() {
  return (
    <>
      <PageHead title="Groups and schedules">
        {may('operator') && (
          <Button icon="plus" onClick={() => openDialog(<CreateGroupDialog />)}>
            Create a group
          </Button>
        )}
        {may('operator') && (
          <Button icon="plus" kind="main" onClick={() => openDialog(<CreateScheduleDialog />)}>
            Create a schedule
          </Button>
        )}
      </PageHead>
      <Groups />
      <Schedules />
    </>
  );
}

function setPaused(name: string, paused: boolean): Promise<void> {
  return attempt('Changing the schedule', async () => {
    await patch(apiPath`/schedules/${name}`, { paused });
    await reload('/schedules');
  });
}

function VolumeLinks({ names }: { names: string[] }) {
  return (
    <span class="line">
      {names.map((name) => (
        <a key={name} href={volumePath(name)}>
          {name}
        </a>
      ))}
    </span>
  );
}

function Groups() {
  const { data, error, reload: again } = useResource<Group[]>('/groups');
  return (
    <Card title="Groups">
      {error && !data && <Failure what="The groups could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton />}
      {data?.length === 0 && (
        <Empty title="No groups" command="hindcast group create shop db log">
          A group names volumes that belong together, so that one command takes them all at one instant.
        </Empty>
      )}
      <ul class="list">
        {data?.map(({ name, volumes }) => (
          <li key={name} class="still">
            <strong>{name}</strong>
            <VolumeLinks names={volumes} />
            {may('admin') && (
              <span class="push">
                <Button
                  icon="trash"
                  kind="quiet"
                  label={`Delete the group ${name}`}
                  onClick={() => openDialog(<DeleteGroupDialog name={name} />)}
                />
              </span>
            )}
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Schedules() {
  const { data, error, reload: again } = useResource<Schedule[]>('/schedules', 30);
  if (!data) {
    return (
      <Card title="Schedules">
        {error ? (
          <Failure what="The schedules could not be read." error={error} retry={again} />
        ) : (
          <Skeleton />
        )}
      </Card>
    );
  }
  if (data.length === 0) {
    return (
      <Card title="Schedules">
        <Empty title="No schedules" command="hindcast schedule create hourly --every 1h --keep-last 24 db">
          A schedule takes snapshots at an interval, and deletes old ones.
        </Empty>
      </Card>
    );
  }
  return (
    <div class="grid-2">
      {data.map((schedule) => (
        <ScheduleCard key={schedule.name} schedule={schedule} />
      ))}
    </div>
  );
}

function ScheduleCard({ schedule }: { schedule: Schedule }) {
  const { name, paused, volumes, error, snapshots, every, wall } = schedule;
  const runs = nextRuns(schedule, 5);
  const actions = may('operator') && (
    <>
      <Button onClick={() => setPaused(name, !paused)}>{paused ? 'Resume' : 'Pause'}</Button>
      {may('admin') && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete the schedule ${name}`}
          onClick={() => openDialog(<DeleteScheduleDialog name={name} />)}
        />
      )}
    </>
  );
  return (
    <Card title={name} actions={actions}>
      <div class="inside stack">
        {error && <p class="warning-text">The last run failed: {error}</p>}
        <Pairs
          of={[
            [
              'Every',
              `${duration(every * 1000)}${wall?.at ? ` at ${wall.at}` : ''}${wall?.tz ? `, ${wall.tz}` : ''}`,
            ],
            ['Volumes', <VolumeLinks key="volumes" names={volumes} />],
            ['Snapshots', plural(snapshots, 'snapshot')],
            [
              'Next runs',
              paused ? (
                <Badge key="paused" tone="b">
                  paused
                </Badge>
              ) : (
                <Runs key="runs" runs={runs} />
              ),
            ],
          ]}
        />
        <Keeps schedule={schedule} />
      </div>
    </Card>
  );
}

function Runs({ runs }: { runs: number[] }) {
  return (
    <ul>
      {runs.map((run) => (
        <li key={run}>
          <Time at={run} still={run !== runs[0]} />
        </li>
      ))}
    </ul>
  );
}

/** Runs that the drawing looks back to. */
const LOOK_BACK = 4000;
const RULE_NAMES: Record<Rule, string> = {
  last: 'last',
  hourly: 'hours',
  daily: 'days',
  weekly: 'weeks',
  monthly: 'months',
};

/** What each rule keeps, drawn by age. The scale grows with the age, so that hours and months both have room. */
function Keeps({ schedule: { keep, every } }: { schedule: Schedule }) {
  const rules = RULES.filter((rule) => (keep[rule] ?? 0) > 0);
  if (rules.length === 0) return <p class="soft">Every snapshot is kept.</p>;
  const runs = pastRuns(every, now.peek(), LOOK_BACK);
  const kept = rules.map((rule) => ({ rule, times: keptBy(rule, keep[rule] ?? 0, runs) }));
  const oldest = Math.max(...kept.map(({ times }) => now.peek() - (times.at(-1) ?? 0)), every * 1000);
  const x = (time: number) =>
    100 - (Math.log1p((now.peek() - time) / (every * 1000)) / Math.log1p(oldest / (every * 1000))) * 98;
  const total = new Set(kept.flatMap(({ times }) => times)).size;
  return (
    <figure class="stack tight">
      <figcaption class="soft small">
        Keeps {plural(total, 'snapshot')} per volume, back to{' '}
        {duration(oldest > DAY ? Math.round(oldest / DAY) * DAY : oldest)} ago
      </figcaption>
      {kept.map(({ rule, times }) => (
        <div key={rule} class="keep-row">
          <span class="small soft">
            {keep[rule]} {RULE_NAMES[rule]}
          </span>
          <svg
            class="keeps"
            role="img"
            aria-label={`${times.length} snapshots by the rule of ${RULE_NAMES[rule]}`}
          >
            <line x1="0" x2="100%" y1="50%" y2="50%" />
            {times.map((time) => (
              <circle key={time} cx={`${x(time)}%`} cy="50%" r="3.5" />
            ))}
          </svg>
        </div>
      ))}
    </figure>
  );
}
