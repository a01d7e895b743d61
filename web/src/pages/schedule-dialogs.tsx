/** Dialogs that create, change and delete schedules. */

import { useState } from 'preact/hooks';
import { apiPath, patch, post } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Group, Schedule, Weekday } from '../api/schema';
import { now } from '../lib/clock';
import { hindcast } from '../lib/command';
import { keepsLess, RULES, type Rule } from '../lib/retention';
import {
  bodyOf,
  changeOf,
  createCommand,
  type Fields,
  fieldsOf,
  isOnTheWall,
  NEW_SCHEDULE,
  type Problems,
  problemsOf,
  setCommand,
  timingOfFields,
} from '../lib/schedule-form';
import { WEEKDAY_NAMES, WEEKDAYS } from '../lib/timing';
import { zoneNames } from '../lib/zone';
import { FormDialog } from '../parts/dialog';
import { TextField, useName } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';
import { NameChoice, VolumeChoice } from './group-dialogs';
import { Runs } from './runs';

const KEEP_LABELS: Record<Rule, string> = {
  last: 'Last',
  hourly: 'Hours',
  daily: 'Days',
  weekly: 'Weeks',
  monthly: 'Months',
};

export function DeleteScheduleDialog({ name }: { name: string }) {
  return (
    <RemoveDialog
      verb="Delete"
      object={`the schedule ${name}`}
      path={apiPath`/schedules/${name}`}
      changes={['/schedules']}
      command={hindcast('schedule', 'delete', name)}
      done={`Schedule ${name} was deleted.`}
    >
      <p>
        Its snapshots stay, and no rule deletes them any more. To stop it for a while, press Pause instead.
      </p>
    </RemoveDialog>
  );
}

interface FieldsProps {
  fields: Fields;
  problems: Problems;
  onChange: (fields: Fields) => void;
}

/** The volumes and groups. A group's volumes need no choice of their own. */
function MemberFields({ fields, problems, onChange }: FieldsProps) {
  const known = useResource<Group[]>('/groups').data ?? [];
  return (
    <>
      {known.length > 0 && (
        <NameChoice
          legend="Groups"
          names={known.map((group) => group.name)}
          chosen={fields.groups}
          onChange={(groups) => onChange({ ...fields, groups })}
        />
      )}
      <VolumeChoice chosen={fields.volumes} onChange={(volumes) => onChange({ ...fields, volumes })} />
      {problems.volumes && <span class="hint">{problems.volumes}</span>}
    </>
  );
}

function TimeFields({ fields, problems, onChange }: FieldsProps) {
  const set = (change: Partial<Fields>) => onChange({ ...fields, ...change });
  return (
    <>
      <div class="columns">
        <TextField
          label="Every"
          value={fields.every}
          onInput={(every) => set({ every })}
          hint="Such as 15m, 1h, 1d or 7d"
          problem={problems.every}
        />
        <TextField
          label="At"
          value={fields.at}
          onInput={(at) => set({ at })}
          hint="For days: a time such as 02:30"
          problem={problems.at}
        />
      </div>
      <WeekdayField chosen={fields.on} problem={problems.on} onChange={(on) => set({ on })} />
      <div class="columns">
        <TextField
          label="Between"
          value={fields.between}
          onInput={(between) => set({ between })}
          hint="For less than a day: 08:00-18:00"
          problem={problems.between}
        />
        <TextField
          label="Time zone"
          value={fields.tz}
          onInput={(tz) => set({ tz })}
          hint={isOnTheWall(fields) ? 'By its name' : 'Used with a time, days or a part of the day'}
          problem={problems.tz}
          suggestions={zoneNames()}
        />
      </div>
    </>
  );
}

interface WeekdayProps {
  chosen: Weekday[];
  problem?: string;
  onChange: (days: Weekday[]) => void;
}

/** The days of the week. None means every day. */
function WeekdayField({ chosen, problem, onChange }: WeekdayProps) {
  const toggle = (day: Weekday) =>
    onChange(WEEKDAYS.filter((other) => chosen.includes(other) !== (other === day)));
  return (
    <fieldset class="field">
      <legend>On</legend>
      <div class="weekdays">
        {WEEKDAYS.map((day) => (
          <label key={day} class="check" title={WEEKDAY_NAMES[day]}>
            <input type="checkbox" checked={chosen.includes(day)} onInput={() => toggle(day)} />
            <span>{WEEKDAY_NAMES[day].slice(0, 3)}</span>
          </label>
        ))}
      </div>
      <span class={problem ? 'hint problem' : 'hint'}>{problem ?? 'No day chosen: every day'}</span>
    </fieldset>
  );
}

function KeepFields({ fields, problems, onChange }: FieldsProps) {
  return (
    <fieldset class="field">
      <legend>Keep the newest snapshot of each of the last</legend>
      <div class="keep-fields">
        {RULES.map((rule) => (
          <TextField
            key={rule}
            label={KEEP_LABELS[rule]}
            value={fields.keep[rule]}
            onInput={(value) => onChange({ ...fields, keep: { ...fields.keep, [rule]: value } })}
          />
        ))}
      </div>
      <span class={problems.keep ? 'hint problem' : 'hint'}>
        {problems.keep ?? 'Without any number, every snapshot is kept.'}
      </span>
    </fieldset>
  );
}

/** When the schedule of the fields would run. */
function Preview({ fields }: { fields: Fields }) {
  const timing = timingOfFields(fields);
  if (!timing) return null;
  const runs: number[] = [];
  for (let run = timing.next(now.peek()); run !== null && runs.length < 3; run = timing.next(run))
    runs.push(run);
  return (
    <div class="stack tight">
      <span class="small soft">Next runs</span>
      <Runs runs={runs} zone={isOnTheWall(fields) ? timing.zone : null} />
    </div>
  );
}

export function CreateScheduleDialog() {
  const { name, valid, field } = useName('', 64);
  const [fields, setFields] = useState(NEW_SCHEDULE);
  const problems = problemsOf(fields);
  const submit = async () => {
    await post('/schedules', { name, ...bodyOf(fields) });
    await reload('/schedules');
    return undefined;
  };
  const parts = { fields, problems, onChange: setFields };
  return (
    <FormDialog
      title="Create a schedule"
      what="Creating the schedule"
      command={createCommand(name, fields)}
      submit="Create"
      disabled={!valid || Object.keys(problems).length > 0}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} />
      <MemberFields {...parts} />
      <TimeFields {...parts} />
      <KeepFields {...parts} />
      <Preview fields={fields} />
    </FormDialog>
  );
}

export function ChangeScheduleDialog({ schedule }: { schedule: Schedule }) {
  const { name } = schedule;
  const [before] = useState(() => fieldsOf(schedule));
  const [fields, setFields] = useState(before);
  const problems = problemsOf(fields);
  const change = changeOf(before, fields);
  const changed = Object.values(change).some((value) => value !== undefined);
  const loses = change.keep ? keepsLess(schedule.keep, change.keep) : false;
  const submit = async () => {
    await patch(apiPath`/schedules/${name}`, change);
    await reload('/schedules');
    return { text: `Schedule ${name} was changed.` };
  };
  const parts = { fields, problems, onChange: setFields };
  return (
    <FormDialog
      title={`Change the schedule ${name}`}
      what="Changing the schedule"
      danger={loses}
      command={setCommand(name, before, fields)}
      submit="Change"
      confirm={loses ? name : undefined}
      disabled={!changed || Object.keys(problems).length > 0}
      onSubmit={submit}
    >
      <MemberFields {...parts} />
      <TimeFields {...parts} />
      <KeepFields {...parts} />
      <p class={loses ? 'warning-text' : 'soft small'}>
        The next run deletes the snapshots of this schedule that the numbers do not keep. A volume that leaves
        the schedule keeps its snapshots, and no rule deletes them any more.
      </p>
      <Preview fields={fields} />
    </FormDialog>
  );
}
