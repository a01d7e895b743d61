/** Dialogs of a volume's settings. */

import { useState } from 'preact/hooks';
import { apiPath, patch } from '../../api/client';
import { reload } from '../../api/resource';
import type { PatchCdp, PatchVolume, Volume } from '../../api/schema';
import { may } from '../../api/session';
import { hindcast } from '../../lib/command';
import { bytes, parseSeconds, parseSize, secondsArgument, sizeArgument } from '../../lib/format';
import { FormDialog } from '../../parts/dialog';
import { SelectField, TextField, useName } from '../../parts/fields';
import { navigate, volumePath } from '../../router';

type Encoding = 'parity' | 'undo' | 'redo' | 'off';

const ENCODINGS: [Encoding, string][] = [
  ['parity', 'Parity: the smallest history'],
  ['redo', 'Redo: new content'],
  ['undo', 'Undo: old content'],
  ['off', 'No history'],
];

/** Changes a volume, and waits until the page shows it: the next dialog begins with what is now. */
async function change({ name }: Volume, changes: PatchVolume): Promise<undefined> {
  const path = apiPath`/volumes/${name}`;
  await patch(path, changes);
  await reload(path);
  return undefined;
}

export function HistoryDialog({ volume }: { volume: Volume }) {
  const [encoding, setEncoding] = useState<Encoding>(volume.cdp?.encoding ?? 'parity');
  const [retain, setRetain] = useState(
    volume.cdp?.retain_seconds ? secondsArgument(volume.cdp.retain_seconds) : volume.cdp ? '' : '7d',
  );
  const seconds = retain === '' ? null : parseSeconds(retain);
  const off = encoding === 'off';
  const invalid = !off && retain !== '' && !seconds;
  const shorter =
    Boolean(volume.cdp) &&
    seconds !== null &&
    seconds < (volume.cdp?.retain_seconds ?? Number.POSITIVE_INFINITY);
  const loses = Boolean(volume.cdp) && (off || shorter);
  const cdp: PatchCdp = off ? { enabled: false } : { enabled: true, encoding, retain_seconds: seconds ?? 0 };
  const submit = () => change(volume, { cdp });
  return (
    <FormDialog
      title={`History of ${volume.name}`}
      what="Changing the history"
      danger={loses}
      command={hindcast(
        'volume',
        'set',
        volume.name,
        '--cdp',
        encoding,
        ...(off ? [] : ['--retain', seconds ? secondsArgument(seconds) : 'all']),
      )}
      submit="Change"
      confirm={loses ? volume.name : undefined}
      disabled={invalid || (loses && !may('admin'))}
      onSubmit={submit}
    >
      <SelectField label="Encoding" value={encoding} onInput={setEncoding} options={ENCODINGS} />
      {!off && (
        <TextField
          label="Keep for"
          value={retain}
          onInput={setRetain}
          hint="A time such as 12h, 7d or 4w. Empty: keep everything"
          first
        />
      )}
      {off && volume.cdp && (
        <p class="warning-text">
          The server records no more moments. The recorded history stays until its retention ends.
        </p>
      )}
      {!off && shorter && (
        <p class="warning-text">Moments that are older than the new limit are lost. Snapshots stay.</p>
      )}
    </FormDialog>
  );
}

export function ResizeDialog({ volume }: { volume: Volume }) {
  const [text, setText] = useState(bytes(volume.size));
  const size = parseSize(text);
  const smaller = size !== null && size < volume.size;
  const submit = () => change(volume, { size, force: smaller || undefined });
  return (
    <FormDialog
      title={`Resize ${volume.name}`}
      what="Resizing"
      danger={smaller}
      command={hindcast(
        'volume',
        'resize',
        volume.name,
        '--size',
        sizeArgument(size ?? volume.size),
        smaller && '--force',
      )}
      submit="Resize"
      confirm={smaller ? volume.name : undefined}
      disabled={size === null || size === volume.size || (smaller && !may('admin'))}
      onSubmit={submit}
    >
      <TextField
        label="New size"
        value={text}
        onInput={setText}
        hint="Such as 20 GiB or 1.5T. A volume takes only the space that is written."
        first
      />
      {smaller && <p class="warning-text">The data after the new end is lost.</p>}
    </FormDialog>
  );
}

export function RenameDialog({ volume }: { volume: Volume }) {
  const { name, valid, field } = useName(volume.name);
  const submit = async () => {
    await patch(apiPath`/volumes/${volume.name}`, { name });
    navigate(volumePath(name, 'settings'));
    return undefined;
  };
  return (
    <FormDialog
      title={`Rename ${volume.name}`}
      what="Renaming"
      command={hindcast('volume', 'rename', volume.name, name)}
      submit="Rename"
      disabled={name === volume.name || !valid}
      onSubmit={submit}
    >
      <TextField
        label="New name"
        {...field}
        hint="Clients that connect by the old name no longer find the volume."
      />
    </FormDialog>
  );
}

/** The labels of a text with one `name=value` a line. */
function labelsOf(text: string): Record<string, string> {
  const lines = text.split('\n').map((line) => line.trim());
  return Object.fromEntries(
    lines.filter(Boolean).map((line) => [line.split('=')[0] ?? '', line.split('=').slice(1).join('=')]),
  );
}

export function LabelsDialog({ volume }: { volume: Volume }) {
  const old = volume.labels ?? {};
  const [text, setText] = useState(
    Object.entries(old)
      .map(([name, value]) => `${name}=${value}`)
      .join('\n'),
  );
  const labels = labelsOf(text);
  const gone = Object.keys(old).filter((name) => !(name in labels));
  const submit = () =>
    change(volume, { labels: { ...labels, ...Object.fromEntries(gone.map((name) => [name, null])) } });
  const words = [
    ...Object.entries(labels).map(([name, value]) => `${name}=${value}`),
    ...gone.map((name) => `${name}=`),
  ];
  return (
    <FormDialog
      title={`Labels of ${volume.name}`}
      what="Changing the labels"
      command={hindcast('volume', 'label', volume.name, ...words)}
      submit="Change"
      onSubmit={submit}
    >
      <div class="field">
        <label for="labels-text">Labels, one name=value a line</label>
        <textarea
          id="labels-text"
          rows={6}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          data-first=""
        />
      </div>
    </FormDialog>
  );
}
