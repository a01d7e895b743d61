/** Dialogs that create groups and schedules. */

import { useState } from 'preact/hooks';
import { post } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { CreateSchedule, Retention, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { parseSeconds, secondsArgument } from '../lib/format';
import { RULES } from '../lib/retention';
import { closeDialog, FormDialog } from '../parts/dialog';
import { CheckField, nameProblem, TextField } from '../parts/fields';

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
  const [name, setName] = useState('');
  const [volumes, setVolumes] = useState<string[]>([]);
  const submit = async () => {
    await post('/groups', { name, volumes });
    await reload('/groups');
    closeDialog();
  };
  return (
    <FormDialog
      title="Create a group"
      what="Creating the group"
      command={hindcast('group', 'create', name || 'NAME', ...volumes)}
      submit="Create"
      disabled={name === '' || nameProblem(name) !== null || volumes.length === 0}
      onSubmit={submit}
    >
      <TextField label="Name" value={name} onInput={setName} problem={nameProblem(name)} first />
      <VolumeChoice chosen={volumes} onChange={setVolumes} />
    </FormDialog>
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
  if (name === '' || nameProblem(name) || !seconds || volumes.length === 0) return null;
  const numbers = Object.fromEntries(RULES.map((rule) => [rule, Number(keep[rule]) || 0]));
  return {
    name,
    every: seconds,
    volumes,
    keep: numbers,
    wall: at ? { at, tz: Intl.DateTimeFormat().resolvedOptions().timeZone } : undefined,
  };
}

export function CreateScheduleDialog() {
  const [name, setName] = useState('');
  const [every, setEvery] = useState('1h');
  const [at, setAt] = useState('');
  const [keep, setKeep] = useState(NO_KEEP);
  const [volumes, setVolumes] = useState<string[]>([]);
  const body = bodyOf(name, every, at, keep, volumes);
  const submit = async () => {
    await post('/schedules', body);
    await reload('/schedules');
    closeDialog();
  };
  const keeps = RULES.flatMap((rule) => (Number(keep[rule]) > 0 ? [`--keep-${rule}`, keep[rule]] : []));
  const words = ['schedule', 'create', name || 'NAME', '--every', secondsArgument(parseSeconds(every) ?? 0)];
  return (
    <FormDialog
      title="Create a schedule"
      what="Creating the schedule"
      command={hindcast(...words, ...(at ? ['--at', at] : []), ...keeps, ...volumes)}
      submit="Create"
      disabled={!body}
      onSubmit={submit}
    >
      <div class="columns">
        <TextField label="Name" value={name} onInput={setName} problem={nameProblem(name)} first />
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
