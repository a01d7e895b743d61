import { useState } from 'preact/hooks';
import { hindcast } from '../../lib/command';
import { toRfc3339 } from '../../lib/time';
import { Command } from '../../parts/basics';
import { Dialog, DoneFooter } from '../../parts/dialog';
import { CheckField, TextField } from '../../parts/fields';
import type { TimelineState } from '../state';
import { MomentLine } from './moment-line';

/** The command that finds the last good moment by a check. It runs on the person's machine. */
export function FindDialog({ state, moment }: { state: TimelineState; moment: number }) {
  const [check, setCheck] = useState('test -s "$HINDCAST_MOUNT/important.txt"');
  const [mount, setMount] = useState(true);
  const [flushes, setFlushes] = useState(state.consistent.peek());
  const second = state.second.peek();
  const bad = second !== null && second > moment ? toRfc3339(second) : 'now';
  const ends = ['--from', toRfc3339(moment), '--to', bad];
  const command = hindcast(
    'recover',
    'bisect',
    state.volume,
    ...ends,
    mount && '--mount',
    flushes && '--flushes',
    '--check',
    check,
  );
  return (
    <Dialog title="Find the moment at which it broke">
      <p class="soft">
        The volume was good at this moment, and it is bad {second === null ? 'now' : 'at the second handle'}.
        The command opens moments between the two, runs your check on each, and prints the last moment at
        which the check succeeds.
      </p>
      <MomentLine state={state} moment={moment} />
      <TextField
        label="Check"
        value={check}
        onInput={setCheck}
        hint="A command that succeeds if the volume is good"
        first
      />
      <CheckField label="Mount the file system of each moment" checked={mount} onInput={setMount} />
      <CheckField label="Test only moments at which clients flushed" checked={flushes} onInput={setFlushes} />
      <Command text={command} />
      <DoneFooter />
    </Dialog>
  );
}
