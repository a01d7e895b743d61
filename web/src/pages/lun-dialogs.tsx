/** Dialogs of a target's LUNs. */

import { useState } from 'preact/hooks';
import { apiPath, post, query } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { AddLun, Lun, Snapshot, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { plural } from '../lib/format';
import { FormDialog } from '../parts/dialog';
import { CheckField, SelectField, TextField } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';

type Kind = 'volume' | 'snapshot' | 'file' | 'device';

const KINDS: [Kind, string][] = [
  ['volume', 'A volume'],
  ['snapshot', 'A snapshot, read-only'],
  ['file', "A file on the server's machine"],
  ['device', "A block device of the server's machine"],
];

/** Suggestions of one field. More would only be scrolled past. */
const SUGGESTED = 200;

interface Fields {
  kind: Kind;
  volume: string;
  snapshot: string;
  path: string;
  number: string;
  readOnly: boolean;
}

/** The request and the command of the fields, or null while something is missing. */
function lunOf({ kind, volume, snapshot, path, number, readOnly }: Fields): [AddLun, string[]] | null {
  if (!/^\d{0,5}$/.test(number) || Number(number) > 16_383) return null;
  const lun = number === '' ? undefined : Number(number);
  const words = lun === undefined ? [] : ['--lun', number];
  if (kind === 'file' || kind === 'device') {
    const options = [`--${kind}`, path, ...(readOnly ? ['--read-only'] : [])];
    return path.startsWith('/') ? [{ lun, [kind]: path, read_only: readOnly }, [...words, ...options]] : null;
  }
  const address = kind === 'snapshot' ? `${volume}@${snapshot}` : volume;
  if (volume === '' || (kind === 'snapshot' && snapshot === '')) return null;
  return [{ lun, volume: address }, [...words, '--volume', address]];
}

/** What the command shows while something is missing. */
function placeholder(kind: Kind, volume: string): string[] {
  if (kind === 'file' || kind === 'device') return [`--${kind}`, '/PATH'];
  return ['--volume', kind === 'snapshot' ? `${volume || 'VOLUME'}@NAME` : 'VOLUME'];
}

export function AddLunDialog({ target }: { target: string }) {
  const volumes = useResource<Volume[]>('/volumes').data ?? [];
  const [fields, setFields] = useState<Fields>({
    kind: 'volume',
    volume: '',
    snapshot: '',
    path: '',
    number: '',
    readOnly: false,
  });
  const set = (change: Partial<Fields>) => setFields({ ...fields, ...change });
  const volume = fields.volume || (volumes[0]?.name ?? '');
  const { kind } = fields;
  const chosen = lunOf({ ...fields, volume });
  const submit = async () => {
    await post(apiPath`/targets/${target}/luns`, chosen?.[0]);
    await reload('/targets');
    return undefined;
  };
  return (
    <FormDialog
      title={`Add a LUN to ${target}`}
      what="Adding the LUN"
      command={hindcast('target', 'add-lun', target, ...(chosen?.[1] ?? placeholder(kind, volume)))}
      submit="Add"
      disabled={!chosen}
      onSubmit={submit}
    >
      <SelectField label="It is" value={kind} onInput={(value) => set({ kind: value })} options={KINDS} />
      {(kind === 'volume' || kind === 'snapshot') && (
        <SelectField
          label="Volume"
          value={volume}
          onInput={(value) => set({ volume: value, snapshot: '' })}
          options={volumes.map(({ name }) => [name, name] as const)}
        />
      )}
      {kind === 'snapshot' && (
        <SnapshotField volume={volume} value={fields.snapshot} onInput={(snapshot) => set({ snapshot })} />
      )}
      {(kind === 'file' || kind === 'device') && (
        <>
          <TextField
            label="Path"
            value={fields.path}
            onInput={(path) => set({ path })}
            hint="It is exported as it is, without the pool. The server allows the paths of --allow-path only."
          />
          <CheckField
            label="Refuse writes"
            checked={fields.readOnly}
            onInput={(readOnly) => set({ readOnly })}
          />
        </>
      )}
      <TextField
        label="Number"
        value={fields.number}
        onInput={(number) => set({ number })}
        hint="0 to 16383. Empty: the lowest that is free"
      />
    </FormDialog>
  );
}

interface SnapshotProps {
  volume: string;
  value: string;
  onInput: (name: string) => void;
}

function SnapshotField({ volume, value, onInput }: SnapshotProps) {
  const path = volume ? apiPath`/volumes/${volume}/snapshots` : null;
  const snapshots = useResource<Snapshot[]>(path).data ?? [];
  return (
    <TextField
      label="Snapshot"
      value={value}
      onInput={onInput}
      suggestions={snapshots.slice(-SUGGESTED).map(({ name }) => name)}
      hint="Its name"
    />
  );
}

interface RemoveLunProps {
  target: string;
  lun: Lun;
  /** Initiators that are logged in. */
  sessions: number;
}

export function RemoveLunDialog({ target, lun: { lun, source }, sessions }: RemoveLunProps) {
  const force = sessions > 0;
  return (
    <RemoveDialog
      verb="Remove"
      object={`LUN ${lun} of ${target}`}
      path={apiPath`/targets/${target}/luns/${lun}` + query({ force: force || undefined })}
      changes={['/targets']}
      command={hindcast('target', 'remove-lun', target, String(lun), force && '--force')}
      done={`LUN ${lun} of ${target} was removed.`}
    >
      <p>{source} stays. Initiators no longer find it at this target.</p>
      {force && (
        <p class="warning-text">
          {plural(sessions, 'initiator is', 'initiators are')} logged in. A file system that is mounted from
          this LUN fails.
        </p>
      )}
    </RemoveDialog>
  );
}
