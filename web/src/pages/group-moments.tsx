/** Dialogs for all volumes of a group at one instant: a snapshot, a mark, a rollback. */

import { useState } from 'preact/hooks';
import { apiPath, post } from '../api/client';
import { reloadAll, useResource } from '../api/resource';
import type { Group, RolledBack, Volume } from '../api/schema';
import { now } from '../lib/clock';
import { hindcast } from '../lib/command';
import { plural } from '../lib/format';
import { localTime, relative, toRfc3339, typedTime, zoneOffset } from '../lib/time';
import { FormDialog, type Message } from '../parts/dialog';
import { CheckField, TextField, useName } from '../parts/fields';
import { attempt, notify } from '../parts/notices';
import { ClientsWarning } from '../parts/roll-back';
import { clientsOf } from './clients';

export function GroupSnapshotDialog({ group: { name: group, volumes } }: { group: Group }) {
  const { name, valid, field } = useName();
  const submit = async () => {
    const snapshots = volumes.map((volume) => ({ volume, name: name || undefined }));
    await post('/snapshots', { snapshots });
    reloadAll();
    return {
      text: `${plural(volumes.length, 'snapshot')} of one instant ${volumes.length === 1 ? 'was' : 'were'} taken.`,
    };
  };
  return (
    <FormDialog
      title={`Take a snapshot of ${group}`}
      what="Taking the snapshots"
      command={hindcast('snapshot', 'create', name ? `${group}@${name}` : group)}
      submit="Take the snapshot"
      disabled={name !== '' && !valid}
      onSubmit={submit}
    >
      <p class="soft">One snapshot of each volume, all of one instant: {volumes.join(', ')}.</p>
      <TextField label="Name" {...field} hint="Without a name, the snapshots get the time in UTC." />
    </FormDialog>
  );
}

export function MarkGroupDialog({ group: { name: group, volumes } }: { group: Group }) {
  const { name, valid, field } = useName();
  const submit = async () => {
    await post('/marks', { name, volumes });
    return { text: `Mark ${name} was set on ${volumes.join(', ')}.` };
  };
  return (
    <FormDialog
      title={`Mark the present of ${group}`}
      what="Setting the marks"
      command={hindcast('mark', group, name || 'NAME')}
      submit="Set the mark"
      disabled={!valid}
      onSubmit={submit}
    >
      <p class="soft">
        A mark names one instant in the histories of {volumes.join(', ')}. It takes no space, and each of the
        volumes needs a history.
      </p>
      <TextField label="Name" {...field} />
    </FormDialog>
  );
}

/** Gives each volume the content that it had before a rollback. */
function undo(results: RolledBack[]): Promise<void> {
  return attempt('Undoing the rollback', async () => {
    for (const { volume, undo: snapshot } of results)
      await post(apiPath`/volumes/${volume.name}/snapshots/${snapshot.name}/rollback`, { force: true });
    reloadAll();
    notify(`${results.map(({ volume }) => volume.name).join(', ')} have their content from before again.`);
  });
}

function wentBack(group: string, results: RolledBack[]): Message {
  return {
    text: `All volumes of ${group} are as they were then. A snapshot of each keeps its content from before.`,
    action: { label: 'Undo', run: () => void undo(results) },
  };
}

export function GroupRollBackDialog({ group: { name: group, volumes } }: { group: Group }) {
  const [text, setText] = useState('');
  const [lastFlush, setLastFlush] = useState(false);
  const time = typedTime(text, now.value);
  const to = time === null ? text.trim() : toRfc3339(time);
  const all = useResource<Volume[]>('/volumes').data ?? [];
  const clients = all
    .filter(({ name }) => volumes.includes(name))
    .reduce((sum, volume) => sum + clientsOf(volume), 0);
  const force = clients > 0;
  const submit = async () => {
    const body = { to, volumes, force, last_flush: lastFlush };
    const results = await post<RolledBack[]>('/recoveries/in-place', body);
    reloadAll();
    return wentBack(group, results);
  };
  const words = [lastFlush && '--last-flush', force && '--force'];
  return (
    <FormDialog
      title={`Roll back all volumes of ${group}`}
      what="The rollback"
      danger
      command={hindcast('rollback', `${group}@${to || 'MOMENT'}`, ...words)}
      submit="Roll back"
      confirm={group}
      disabled={to === ''}
      onSubmit={submit}
    >
      <p>
        {volumes.join(', ')} return to one moment. A new snapshot of each keeps its present content, so you
        can undo this.
      </p>
      <TextField
        label="Moment"
        value={text}
        onInput={setText}
        first
        hint={
          time === null
            ? 'A time such as 10:41, yesterday 10:41 or 5m ago, or the name of a snapshot or mark of each volume'
            : `${localTime(time)} ${zoneOffset(time)}, ${relative(time, now.value)}`
        }
      />
      {force && <ClientsWarning clients={clients} one="one of the volumes" />}
      <CheckField
        label="Use the last flush at or before this moment: what clients had on stable storage"
        checked={lastFlush}
        onInput={setLastFlush}
      />
    </FormDialog>
  );
}
