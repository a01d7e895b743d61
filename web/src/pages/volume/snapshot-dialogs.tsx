/** Dialogs of snapshots: take, clone, delete, roll back. */

import { useState } from 'preact/hooks';
import { apiPath, post } from '../../api/client';
import type { RolledBack, Snapshot, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { plural } from '../../lib/format';
import { closeDialog, FormDialog } from '../../parts/dialog';
import { nameProblem, TextField } from '../../parts/fields';
import { attempt, notify } from '../../parts/notices';
import { navigate, volumePath } from '../../router';
import { clientsOf } from '../clients';

export function CreateSnapshotDialog({ volume }: { volume: string }) {
  const [name, setName] = useState('');
  const submit = async () => {
    const [snapshot] = await post<Snapshot[]>('/snapshots', {
      snapshots: [{ volume, name: name || undefined }],
    });
    closeDialog();
    notify(`Snapshot ${volume}@${snapshot?.name} was taken.`);
  };
  return (
    <FormDialog
      title={`Take a snapshot of ${volume}`}
      what="Taking the snapshot"
      command={hindcast('snapshot', 'create', name ? `${volume}@${name}` : volume)}
      submit="Take the snapshot"
      disabled={nameProblem(name) !== null}
      onSubmit={submit}
    >
      <TextField
        label="Name"
        value={name}
        onInput={setName}
        problem={nameProblem(name)}
        hint="Without a name, the snapshot gets the time in UTC."
        first
      />
    </FormDialog>
  );
}

export function CloneDialog({ volume, snapshot }: { volume: string; snapshot: string }) {
  const [name, setName] = useState(`${volume}-copy`);
  const submit = async () => {
    await post<Volume>(apiPath`/volumes/${volume}/snapshots/${snapshot}/clones`, { name });
    closeDialog();
    notify(`Clone ${name} was created.`, { label: 'Show it', run: () => navigate(volumePath(name)) });
  };
  return (
    <FormDialog
      title={`Clone ${volume}@${snapshot}`}
      what="Creating the clone"
      command={hindcast('clone', 'create', `${volume}@${snapshot}`, name)}
      submit="Create the clone"
      disabled={name === '' || nameProblem(name) !== null}
      onSubmit={submit}
    >
      <p class="soft">
        A clone is a writable volume that begins as the snapshot. It shares the snapshot's data, so it takes
        no space at first.
      </p>
      <TextField label="Name of the clone" value={name} onInput={setName} problem={nameProblem(name)} first />
    </FormDialog>
  );
}

interface DeleteProps {
  volume: string;
  names: string[];
  onDone: () => void;
}

export function DeleteSnapshotsDialog({ volume, names, onDone }: DeleteProps) {
  const [typed, setTyped] = useState('');
  const submit = async () => {
    await post(apiPath`/volumes/${volume}/snapshots/delete`, { names });
    onDone();
    closeDialog();
    notify(`${plural(names.length, 'snapshot')} of ${volume} deleted.`);
  };
  return (
    <FormDialog
      title={`Delete ${plural(names.length, 'snapshot')} of ${volume}`}
      what="Deleting the snapshots"
      danger
      command={hindcast('snapshot', 'delete', ...names.map((name) => `${volume}@${name}`))}
      submit="Delete"
      disabled={typed !== volume}
      onSubmit={submit}
    >
      <p class="warning-text">A deleted snapshot can't be restored. The volume and its history stay.</p>
      <p class="names">
        {names.slice(0, 20).join(', ') + (names.length > 20 ? ` and ${names.length - 20} more` : '')}
      </p>
      <TextField label={`Type ${volume} to confirm`} value={typed} onInput={setTyped} first />
    </FormDialog>
  );
}

export function RollBackDialog({ volume, snapshot }: { volume: Volume; snapshot: string }) {
  const [typed, setTyped] = useState('');
  const force = clientsOf(volume) > 0;
  const path = (name: string) => apiPath`/volumes/${volume.name}/snapshots/${name}/rollback`;
  const submit = async () => {
    const { undo } = await post<RolledBack>(path(snapshot), { force });
    closeDialog();
    notify(
      `${volume.name} has the content of ${snapshot}. Snapshot ${undo.name} keeps its content from before.`,
      {
        label: 'Undo',
        run: () => void attempt('Undoing the rollback', () => post(path(undo.name), { force: true })),
      },
    );
  };
  return (
    <FormDialog
      title={`Roll ${volume.name} back to ${snapshot}`}
      what="The rollback"
      danger
      command={hindcast('rollback', `${volume.name}@${snapshot}`, force && '--force')}
      submit="Roll back"
      disabled={typed !== volume.name}
      onSubmit={submit}
    >
      <p>
        The volume gets the content of the snapshot. A new snapshot keeps the present content, so you can undo
        this.
      </p>
      {force && (
        <p class="warning-text">
          {plural(clientsOf(volume), 'client uses', 'clients use')} the volume. Stop their programs first. The
          server closes NBD connections and reports the change to iSCSI initiators.
        </p>
      )}
      <TextField label={`Type ${volume.name} to confirm`} value={typed} onInput={setTyped} first />
    </FormDialog>
  );
}
