/** Dialogs that create and delete groups and schedules. */

import { useState } from 'preact/hooks';
import { apiPath, post } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { CreateSchedule, Retention, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { parseSeconds, secondsArgument } from '../lib/format';
import { RULES } from '../lib/retention';
import { FormDialog } from '../parts/dialog';
import { CheckField, TextField, useName } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';

function VolumeChoice({ chosen, onChange }: { chosen: string[]; onChange: (names: string[]) => void }) {
  const volumes = useResource<Volume[]>('/volumes').data ?? [];
  return (
    <fieldset class="field">
      <legend>Volumes</legend>
      <div class="volume-choice">
        {volumes.map(({ name }) => (
          <CheckField
            key={name}
            label={name}
            checked={chosen.includes(name)}
            onInput={(checked) =>
              onChange(checked ? [...chosen, name] : chosen.filter((other) => other !== name))
            }
          />
        ))}
      </div>
    </fieldset>
  );
}

export function CreateGroupDialog() {
  const { name, valid, field } = useName();
  const [volumes, setVolumes] = useState<string[]>([]);
  const submit = async () => {
    await post('/groups', { name, volumes });
    await reload('/groups');
    return undefined;
  };
  return (
    <FormDialog
      title="Create a group"
      what="Creating the group"
      command={hindcast('group', 'create', name || 'NAME', ...volumes)}
      submit="Create"
      disabled={!valid || volumes.length === 0}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} />
      <VolumeChoice chosen={volumes} onChange={setVolumes} />
    </FormDialog>
  );
}

export function DeleteGroupDialog({ name }: { name: string }) {
  return (
    <RemoveDialog
      verb="Delete"
      object={`the group ${name}`}
      path={apiPath`/groups/${name}`}
      changes={['/groups']}
      command={hindcast('group', 'delete', name)}
      done={`Group ${name} was deleted.`}
    >
      <p>Its volumes and their snapshots stay.</p>
    </RemoveDialog>
  );
}

type Keep = Record<keyof Retention, string>;

const NO_KEEP: Keep = { last: '', hourly: '24', daily: '7', weekly: '4', monthly: '' };
const KEEP_LABELS: Keep = {
  last: 'Last',
  hourly: 'Hours',
  daily: 'Days',
  weekly: 'Weeks',
  monthly: 'Months',
};

function bodyOf(
  name: string,
  every: string,
  at: string,
  keep: Keep,
  volumes: string[],
): CreateSchedule | null {
  const seconds = parseSeconds(every);
  if (!seconds || volumes.length === 0) return null;
  const numbers = Object.fromEntries(RULES.map((rule) => [rule, Number(keep[rule]) || 0]));
  return {
    name,
    every: seconds,
    volumes,
    keep: numbers,
    wall: at ? { at, tz: Intl.DateTimeFormat().resolvedOptions().timeZone } : undefined,
  };
}

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

export function CreateScheduleDialog() {
  const { name, valid, field } = useName();
  const [every, setEvery] = useState('1h');
  const [at, setAt] = useState('');
  const [keep, setKeep] = useState(NO_KEEP);
  const [volumes, setVolumes] = useState<string[]>([]);
  const body = bodyOf(name, every, at, keep, volumes);
  const submit = async () => {
    await post('/schedules', body);
    await reload('/schedules');
    return undefined;
  };
  const keeps = RULES.flatMap((rule) => (Number(keep[rule]) > 0 ? [`--keep-${rule}`, keep[rule]] : []));
  const words = ['schedule', 'create', name || 'NAME', '--every', secondsArgument(parseSeconds(every) ?? 0)];
  return (
    <FormDialog
      title="Create a schedule"
      what="Creating the schedule"
      command={hindcast(...words, ...(at ? ['--at', at] : []), ...keeps, ...volumes)}
      submit="Create"
      disabled={!valid || !body}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} />
      <div class="columns">
        <TextField label="Every" value={every} onInput={setEvery} hint="Such as 15m, 1h or 1d" />
        <TextField label="At" value={at} onInput={setAt} hint="For days: a time such as 02:30" />
      </div>
      <fieldset class="field">
        <legend>Keep the newest snapshot of each of the last</legend>
        <div class="keep-fields">
          {RULES.map((rule) => (
            <TextField
              key={rule}
              label={KEEP_LABELS[rule]}
              value={keep[rule]}
              onInput={(value) => setKeep({ ...keep, [rule]: value })}
            />
          ))}
        </div>
      </fieldset>
      <VolumeChoice chosen={volumes} onChange={setVolumes} />
    </FormDialog>
  );
}
