/** Groups of volumes, and the schedules that take their snapshots. */

import { apiPath, patch } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Schedule } from '../api/schema';
import { may } from '../api/session';
import { now } from '../lib/clock';
import { plural } from '../lib/format';
import { keptBy, nextRuns, RULES, type Rule, timingOfSchedule } from '../lib/retention';
import { DAY, duration } from '../lib/time';
import { WEEKDAY_NAMES } from '../lib/timing';
import { Badge, Button, Card, Empty, Failure, PageHead, Pairs, Skeleton } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { CreateGroupDialog } from './group-dialogs';
import { Groups, VolumeLinks } from './groups';
import { Runs } from './runs';
import { ChangeScheduleDialog, CreateScheduleDialog, DeleteScheduleDialog } from './schedule-dialogs';

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
  const { name, paused, volumes, groups, error, snapshots, wall } = schedule;
  const zone = wall ? timingOfSchedule(schedule)?.zone : null;
  const actions = may('operator') && (
    <>
      <Button
        label={`Change the schedule ${name}`}
        onClick={() => openDialog(<ChangeScheduleDialog schedule={schedule} />)}
      >
        Change
      </Button>
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
            ['Every', timesText(schedule)],
            ['Groups', groups && groups.length > 0 && groups.join(', ')],
            ['Volumes', <VolumeLinks key="volumes" names={volumes} />],
            ['Snapshots', plural(snapshots, 'snapshot')],
            [
              'Next runs',
              paused ? (
                <Badge key="paused" tone="b">
                  paused
                </Badge>
              ) : (
                <Runs key="runs" runs={nextRuns(schedule, 5)} zone={zone ?? null} />
              ),
            ],
          ]}
        />
        <Keeps schedule={schedule} />
      </div>
    </Card>
  );
}

/** When a schedule runs: "15 min on Monday, Friday between 08:00 and 18:00, Europe/Berlin". */
function timesText({ every, wall }: Schedule): string {
  const days = wall?.on?.map((day) => WEEKDAY_NAMES[day]).join(', ');
  const parts = [
    duration(every * 1000),
    wall?.at && `at ${wall.at}`,
    days && `on ${days}`,
    wall?.between && `between ${wall.between.replace('-', ' and ')}`,
  ];
  return parts.filter(Boolean).join(' ') + (wall?.tz ? `, ${wall.tz}` : '');
}

const RULE_NAMES: Record<Rule, string> = {
  last: 'last',
  hourly: 'hours',
  daily: 'days',
  weekly: 'weeks',
  monthly: 'months',
};

/**
 * What each rule keeps, drawn by age. The scale grows with the age, so that hours and months both
 * have room.
 */
function Keeps({ schedule }: { schedule: Schedule }) {
  const { keep, every } = schedule;
  const rules = RULES.filter((rule) => (keep[rule] ?? 0) > 0);
  const timing = timingOfSchedule(schedule);
  if (rules.length === 0) return <p class="soft">Every snapshot is kept.</p>;
  if (!timing) return <p class="soft">This browser does not know the time zone {schedule.wall?.tz}.</p>;
  const kept = rules.map((rule) => ({ rule, times: keptBy(rule, keep[rule] ?? 0, timing, now.peek()) }));
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
