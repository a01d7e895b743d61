import { useState } from 'preact/hooks';
import { post } from '../api/client';
import { reloadAll } from '../api/resource';
import type { CreateVolume, Method, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { parseSeconds, parseSize, secondsArgument, sizeArgument } from '../lib/format';
import { FormDialog } from '../parts/dialog';
import { CheckField, nameProblem, SelectField, TextField } from '../parts/fields';
import { navigate, volumePath } from '../router';

interface Choices {
  name: string;
  size: string;
  history: boolean;
  retain: string;
  block: '512' | '4096';
  chunk: string;
  method: '' | Method;
}

type Preset = [string, string, Partial<Choices>];

const PRESETS: Preset[] = [
  ['Database', 'Any second of the last week', { history: true, retain: '7d', chunk: '16K', block: '4096' }],
  [
    'Virtual machine',
    'Any second of the last day',
    { history: true, retain: '1d', chunk: '64K', block: '512' },
  ],
  ['Archive', 'Snapshots only, large chunks', { history: false, chunk: '1M', block: '512' }],
];

const START: Choices = {
  name: '',
  size: '10G',
  history: true,
  retain: '7d',
  block: '4096',
  chunk: '16K',
  method: '',
};

function bodyOf({ name, size, history, retain, block, chunk, method }: Choices): CreateVolume | null {
  const [bytes, chunkSize, seconds] = [parseSize(size), parseSize(chunk), retain ? parseSeconds(retain) : 0];
  if (name === '' || nameProblem(name) || !bytes || chunkSize === null || seconds === null) return null;
  return {
    name,
    size: bytes,
    block_size: Number(block),
    chunk_size: chunkSize || undefined,
    method: method || undefined,
    cdp: history ? { enabled: true, encoding: 'parity', retain_seconds: seconds || undefined } : undefined,
  };
}

function commandOf({ name, size, history, retain, block, chunk, method }: Choices): string {
  const seconds = parseSeconds(retain);
  return hindcast(
    ...[
      'volume',
      'create',
      name || 'NAME',
      '--size',
      sizeArgument(parseSize(size) ?? 0),
      '--chunk',
      chunk,
      '--block',
      block,
    ],
    ...(method ? ['--method', method] : []),
    ...(history ? ['--cdp', 'parity', '--retain', seconds ? secondsArgument(seconds) : 'all'] : []),
  );
}

/** Creates a volume: by a preset, and by the fields below it. */
export function CreateVolumeDialog() {
  const [preset, setPreset] = useState(0);
  const [choices, setChoices] = useState(START);
  const set = (change: Partial<Choices>) => setChoices({ ...choices, ...change });
  const body = bodyOf(choices);
  const choose = (index: number) => {
    setPreset(index);
    set(PRESETS[index]?.[2] ?? {});
  };
  const submit = async () => {
    const { name } = await post<Volume>('/volumes', body);
    reloadAll();
    navigate(volumePath(name, 'access'));
    return { text: `Volume ${name} was created.` };
  };
  return (
    <FormDialog
      title="Create a volume"
      what="Creating the volume"
      command={commandOf(choices)}
      submit="Create"
      disabled={!body}
      onSubmit={submit}
    >
      <fieldset class="choices">
        <legend class="hidden-text">Purpose</legend>
        {PRESETS.map(([name, about], index) => (
          <label key={name}>
            <input type="radio" name="preset" checked={preset === index} onInput={() => choose(index)} />
            <strong>{name}</strong>
            <span class="small soft">{about}</span>
          </label>
        ))}
      </fieldset>
      <div class="columns">
        <TextField
          label="Name"
          value={choices.name}
          onInput={(name) => set({ name })}
          problem={nameProblem(choices.name)}
          first
        />
        <TextField
          label="Size"
          value={choices.size}
          onInput={(size) => set({ size })}
          hint="Such as 10G or 1.5T. Space is taken as it is written."
        />
      </div>
      <details>
        <summary>More settings</summary>
        <Advanced choices={choices} set={set} />
      </details>
    </FormDialog>
  );
}

function Advanced({ choices, set }: { choices: Choices; set: (change: Partial<Choices>) => void }) {
  return (
    <div class="stack">
      <CheckField
        label="Keep a history of every write"
        checked={choices.history}
        onInput={(history) => set({ history })}
      />
      {choices.history && (
        <TextField
          label="Keep it for"
          value={choices.retain}
          onInput={(retain) => set({ retain })}
          hint="A time such as 12h or 7d. Empty: keep everything"
        />
      )}
      <div class="columns">
        <SelectField
          label="Block"
          value={choices.block}
          onInput={(block) => set({ block })}
          options={[
            ['512', '512 B: every client'],
            ['4096', '4 KiB: modern clients'],
          ]}
        />
        <TextField
          label="Chunk"
          value={choices.chunk}
          onInput={(chunk) => set({ chunk })}
          hint="A power of two, such as 16K. Small chunks suit small writes."
        />
      </div>
      <SelectField
        label="Snapshots preserve data by"
        value={choices.method}
        onInput={(method) => set({ method })}
        options={[
          ['', 'The default of the server'],
          ['row', 'Redirect-on-write'],
          ['cow', 'Copy-on-write'],
        ]}
      />
    </div>
  );
}
