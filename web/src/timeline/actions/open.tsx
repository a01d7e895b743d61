import { useState } from 'preact/hooks';
import { apiPath, patch, post, remove } from '../../api/client';
import { reload } from '../../api/resource';
import type { CreateView, View } from '../../api/schema';
import { now } from '../../lib/clock';
import { hindcast } from '../../lib/command';
import { bytes, count } from '../../lib/format';
import { duration, parseTime, toRfc3339 } from '../../lib/time';
import { Button, Command } from '../../parts/basics';
import { closeDialog, Dialog, DoneFooter, FormDialog, LabelledCommand, STAYS } from '../../parts/dialog';
import { SelectField } from '../../parts/fields';
import { attempt, notify } from '../../parts/notices';
import type { TimelineState } from '../state';
import { LastFlush, MomentLine } from './moment-line';

const LEASES = [
  ['900', '15 minutes'],
  ['3600', '1 hour'],
  ['28800', '8 hours'],
  ['86400', '1 day'],
] as const;

type Lease = (typeof LEASES)[number][0];

const LEASE_ARGUMENT: Record<Lease, string> = { 900: '15m', 3600: '1h', 28800: '8h', 86400: '1d' };

/** The lease that a press of a button gives to an open view. */
const RENEWED: Lease = '3600';

/** Opens a moment as a view, which clients read over NBD and iSCSI. */
export function OpenDialog({ state, moment }: { state: TimelineState; moment: number }) {
  const [lease, setLease] = useState<Lease>('3600');
  const [lastFlush, setLastFlush] = useState(state.consistent.peek());
  const [view, setView] = useState<View | null>(null);
  const to = toRfc3339(moment);
  if (view) return <OpenedView view={view} onChange={setView} />;
  const submit = async () => {
    const body: CreateView = { moment: to, lease_seconds: Number(lease), last_flush: lastFlush };
    setView(await post<View>(apiPath`/volumes/${state.volume}/views`, body));
    state.loader.refresh();
    return STAYS;
  };
  return (
    <FormDialog
      title="Open this moment"
      what="Opening the moment"
      command={hindcast(
        'view',
        'create',
        `${state.volume}@${to}`,
        '--lease',
        LEASE_ARGUMENT[lease],
        lastFlush && '--last-flush',
      )}
      submit="Open"
      onSubmit={submit}
    >
      <MomentLine state={state} moment={moment} />
      <p class="soft">
        A view shows the volume as it was, read-only. {state.volume} and its clients go on meanwhile.
      </p>
      <SelectField
        label="Keep it open for"
        value={lease}
        onInput={setLease}
        options={LEASES}
        hint="A view with connected clients stays open longer."
      />
      <LastFlush checked={lastFlush} onInput={setLastFlush} />
    </FormDialog>
  );
}

/** Shows an open view. */
export function ViewDialog({ view: given }: { view: View }) {
  const [view, setView] = useState(given);
  return <OpenedView view={view} onChange={setView} />;
}

function OpenedView({ view, onChange }: { view: View; onChange: (view: View) => void }) {
  const left = parseTime(view.expires) - now.value;
  const renew = () =>
    attempt('Renewing the view', async () =>
      onChange(await patch<View>(apiPath`/views/${view.id}`, { lease_seconds: Number(RENEWED) })),
    ).then(() => reload('/views'));
  const close = () =>
    attempt('Closing the view', async () => {
      await remove(apiPath`/views/${view.id}`);
      closeDialog();
      notify(`View ${view.address} is closed.`);
      void reload('/views');
    });
  return (
    <Dialog title={`${view.address} is open`}>
      <p class="soft">
        {bytes(view.size)}, read-only, {view.lsn ? `position LSN ${count(view.lsn)}. ` : ''}It closes in{' '}
        {duration(Math.max(left, 0))}.
      </p>
      {[...view.nbd, ...view.iscsi].map((address) => (
        <Command key={address} text={address} label="Copy the address" />
      ))}
      {view.commands.map(({ system, command }) => (
        <LabelledCommand key={system} label={system} text={command} />
      ))}
      <LabelledCommand
        label="Keep it one hour from now, as a command"
        text={hindcast('view', 'renew', view.id, '--lease', LEASE_ARGUMENT[RENEWED])}
      />
      <LabelledCommand label="Close the view, as a command" text={hindcast('view', 'delete', view.id)} />
      <DoneFooter>
        <Button onClick={close}>Close the view</Button>
        <Button onClick={renew}>Keep it one hour from now</Button>
      </DoneFooter>
    </Dialog>
  );
}
