/**
 * What can be switched on and off for a volume. A dialog asks before clients or snapshots lose
 * something.
 */

import type { ComponentChildren } from 'preact';
import { apiPath, patch } from '../../api/client';
import { reload } from '../../api/resource';
import type { PatchVolume, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { Button } from '../../parts/basics';
import { openDialog } from '../../parts/dialog';
import { attempt } from '../../parts/notices';
import { ConfirmDialog } from '../../parts/remove-dialog';

interface Switch {
  label: string;
  on: (volume: Volume) => boolean;
  /**
   * The change of the API that sets it, and the options of `hindcast volume set` that do the same.
   */
  change: (on: boolean) => PatchVolume;
  options: (on: boolean) => string[];
  /** The state in which something is lost, and what the dialog says before. */
  asksFor: boolean;
  title: (name: string) => string;
  warning: (volume: Volume) => ComponentChildren;
}

const yesNo = (on: boolean) => (on ? 'yes' : 'no');

const SWITCHES: Switch[] = [
  {
    label: 'Refuse writes',
    on: ({ read_only }) => read_only,
    change: (on) => ({ read_only: on }),
    options: (on) => [on ? '--read-only' : '--writable'],
    asksFor: true,
    title: (name) => `Refuse writes to ${name}`,
    warning: () => 'Every write of a client fails from now on, and mounted file systems report errors.',
  },
  {
    label: 'Serve over NBD',
    on: ({ nbd }) => nbd !== false,
    change: (on) => ({ nbd: on }),
    options: (on) => ['--nbd', yesNo(on)],
    asksFor: false,
    title: (name) => `Serve ${name} no longer over NBD`,
    warning: () => 'NBD clients are disconnected, and no new one can connect. iSCSI does not change.',
  },
  {
    label: 'Delete old snapshots by itself',
    on: ({ auto_delete }) => auto_delete,
    change: (on) => ({ auto_delete: on }),
    options: (on) => ['--auto-delete', yesNo(on)],
    asksFor: true,
    title: (name) => `Let the server delete snapshots of ${name}`,
    warning: ({ snapshot_reserve }) =>
      `While space is low, or snapshots take more than the reserve of ${snapshot_reserve} %, the server deletes the oldest unprotected snapshots. A deleted snapshot can't be restored.`,
  },
];

export function Switches({ volume }: { volume: Volume }) {
  const path = apiPath`/volumes/${volume.name}`;
  const press = (which: Switch) => {
    const on = !which.on(volume);
    if (on === which.asksFor) return openDialog(<SwitchDialog volume={volume} which={which} />);
    return void attempt('Changing the volume', async () => {
      await patch(path, which.change(on));
      await reload(path);
    });
  };
  return (
    <div class="line">
      {SWITCHES.map((which) => (
        <Button key={which.label} pressed={which.on(volume)} onClick={() => press(which)}>
          {which.label}
        </Button>
      ))}
    </div>
  );
}

function SwitchDialog({ volume, which }: { volume: Volume; which: Switch }) {
  const path = apiPath`/volumes/${volume.name}`;
  const { asksFor: on } = which;
  return (
    <ConfirmDialog
      title={which.title(volume.name)}
      what="Changing the volume"
      submit="Change"
      run={() => patch(path, which.change(on))}
      changes={[path]}
      command={hindcast('volume', 'set', volume.name, ...which.options(on))}
      done={`${volume.name} was changed.`}
      confirm={volume.name}
    >
      <p class="warning-text">{which.warning(volume)}</p>
      <p>You can switch it back here at any time.</p>
    </ConfirmDialog>
  );
}
