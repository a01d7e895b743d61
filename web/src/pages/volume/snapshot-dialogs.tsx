/** Dialogs of snapshots: take, clone, delete, roll back. */

import { apiPath, post } from '../../api/client';
import type { RolledBack, Snapshot, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { plural } from '../../lib/format';
import { FormDialog } from '../../parts/dialog';
import { TextField, useName } from '../../parts/fields';
import { ClientsWarning, rolledBack } from '../../parts/roll-back';
import { navigate, volumePath } from '../../router';
import { clientsOf } from '../clients';

export function CreateSnapshotDialog({ volume }: { volume: string }) {
  const { name, valid, field } = useName();
  const submit = async () => {
    const [snapshot] = await post<Snapshot[]>('/snapshots', {
      snapshots: [{ volume, name: name || undefined }],
    });
    return { text: `Snapshot ${volume}@${snapshot?.name} was taken.` };
  };
  return (
    <FormDialog
      title={`Take a snapshot of ${volume}`}
      what="Taking the snapshot"
      command={hindcast('snapshot', 'create', name ? `${volume}@${name}` : volume)}
      submit="Take the snapshot"
      disabled={name !== '' && !valid}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} hint="Without a name, the snapshot gets the time in UTC." />
    </FormDialog>
  );
}

export function CloneDialog({ volume, snapshot }: { volume: string; snapshot: string }) {
  const { name, valid, field } = useName(`${volume}-copy`);
  const submit = async () => {
    await post<Volume>(apiPath`/volumes/${volume}/snapshots/${snapshot}/clones`, { name });
    return {
      text: `Clone ${name} was created.`,
      action: { label: 'Show it', run: () => navigate(volumePath(name)) },
    };
  };
  return (
    <FormDialog
      title={`Clone ${volume}@${snapshot}`}
      what="Creating the clone"
      command={hindcast('clone', 'create', `${volume}@${snapshot}`, name)}
      submit="Create the clone"
      disabled={!valid}
      onSubmit={submit}
    >
      <p class="soft">
        A clone is a writable volume that begins as the snapshot. It shares the snapshot's data, so it takes
        no space at first.
      </p>
      <TextField label="Name of the clone" {...field} />
    </FormDialog>
  );
}

interface DeleteProps {
  volume: string;
  names: string[];
  onDone: () => void;
}

export function DeleteSnapshotsDialog({ volume, names, onDone }: DeleteProps) {
  const submit = async () => {
    await post(apiPath`/volumes/${volume}/snapshots/delete`, { names });
    onDone();
    return { text: `${plural(names.length, 'snapshot')} of ${volume} deleted.` };
  };
  return (
    <FormDialog
      title={`Delete ${plural(names.length, 'snapshot')} of ${volume}`}
      what="Deleting the snapshots"
      danger
      command={hindcast('snapshot', 'delete', ...names.map((name) => `${volume}@${name}`))}
      submit="Delete"
      confirm={volume}
      onSubmit={submit}
    >
      <p class="warning-text">A deleted snapshot can't be restored. The volume and its history stay.</p>
      <p class="names">
        {names.slice(0, 20).join(', ') + (names.length > 20 ? ` and ${names.length - 20} more` : '')}
      </p>
    </FormDialog>
  );
}

export function RollBackDialog({ volume, snapshot }: { volume: Volume; snapshot: string }) {
  const force = clientsOf(volume) > 0;
  const path = apiPath`/volumes/${volume.name}/snapshots/${snapshot}/rollback`;
  const submit = async () => {
    const result = await post<RolledBack>(path, { force });
    return rolledBack(`${volume.name} has the content of ${snapshot}.`, result);
  };
  return (
    <FormDialog
      title={`Roll ${volume.name} back to ${snapshot}`}
      what="The rollback"
      danger
      command={hindcast('rollback', `${volume.name}@${snapshot}`, force && '--force')}
      submit="Roll back"
      confirm={volume.name}
      onSubmit={submit}
    >
      <p>
        The volume gets the content of the snapshot. A new snapshot keeps the present content, so you can undo
        this.
      </p>
      {force && <ClientsWarning clients={clientsOf(volume)} />}
    </FormDialog>
  );
}
