import { useState } from 'preact/hooks';
import { serverNow } from '../../lib/clock';
import { localTime, typedTime, zoneOffset } from '../../lib/time';
import { FormDialog } from '../../parts/dialog';
import { TextField } from '../../parts/fields';
import type { TimelineState } from '../state';

/** Moves the playhead to a time that the person types. */
export function TypeTimeDialog({ state }: { state: TimelineState }) {
  const [text, setText] = useState('');
  const time = typedTime(text, serverNow());
  const begins = state.whole.value?.begins ?? null;
  const tooEarly = time !== null && begins !== null && time < begins;
  const problem = tooEarly ? `The history begins at ${localTime(begins)}.` : null;
  const understood =
    time === null
      ? 'Examples: 10:41, yesterday 10:41:30, 2026-11-22 10:41, 5m ago'
      : `${localTime(time, 3)} ${zoneOffset(time)}`;
  const submit = async () => {
    if (time !== null) state.moveTo(time);
    return undefined;
  };
  return (
    <FormDialog
      title="Go to a time"
      what="Going to the time"
      submit="Go"
      disabled={time === null || tooEarly}
      onSubmit={submit}
    >
      <TextField label="Time" value={text} onInput={setText} hint={understood} problem={problem} first />
    </FormDialog>
  );
}
