import { useState } from 'preact/hooks';
import { post } from '../../api/client';
import type { Recovered } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { toRfc3339 } from '../../lib/time';
import { FormDialog } from '../../parts/dialog';
import { CheckField, TextField, useName } from '../../parts/fields';
import { navigate, volumePath } from '../../router';
import type { TimelineState } from '../state';
import { shortName } from '../words';
import { LastFlush, MomentLine } from './moment-line';

/** The command line's own limit of the copy's rate, in bytes per second. */
const COPY_RATE = 64 * 1024 ** 2;

/** Makes a new volume with the content of a moment. The volume itself does not change. */
export function RecoverDialog({ state, moment }: { state: TimelineState; moment: number }) {
  const { name, valid, field } = useName(`${state.volume}-${shortName(moment)}`);
  const [lastFlush, setLastFlush] = useState(state.consistent.peek());
  const [complete, setComplete] = useState(true);
  const to = toRfc3339(moment);
  const submit = async () => {
    const body = {
      to,
      volumes: [{ volume: state.volume, name }],
      last_flush: lastFlush,
      complete: complete ? COPY_RATE : undefined,
    };
    await post<Recovered[]>('/recoveries', body);
    state.loader.refresh();
    return {
      text: `Volume ${name} has the content of that moment.`,
      action: { label: 'Show it', run: () => navigate(volumePath(name)) },
    };
  };
  return (
    <FormDialog
      title="Recover to a new volume"
      what="The recovery"
      command={hindcast(
        'recover',
        state.volume,
        '--to',
        to,
        '--as',
        name,
        lastFlush && '--last-flush',
        !complete && '--no-complete',
      )}
      submit="Recover"
      disabled={!valid}
      onSubmit={submit}
    >
      <MomentLine state={state} moment={moment} />
      <p class="soft">The new volume is writable and there at once. {state.volume} does not change.</p>
      <TextField label="Name of the new volume" {...field} />
      <LastFlush checked={lastFlush} onInput={setLastFlush} />
      <CheckField
        label="Copy its content in the background, so that it does not depend on the history"
        checked={complete}
        onInput={setComplete}
      />
    </FormDialog>
  );
}
