/** What can be changed of a volume: its history, size, name, labels, and whether it exists. */

import { apiPath } from '../../api/client';
import { useResource } from '../../api/resource';
import type { CdpStatus, Volume } from '../../api/schema';
import { may } from '../../api/session';
import { bytes, count, percent } from '../../lib/format';
import { duration } from '../../lib/time';
import { Badge, Button, Card, Labels, Pairs, Time } from '../../parts/basics';
import { openDialog } from '../../parts/dialog';
import { DeleteVolumeDialog } from '../delete-volume';
import { HistoryDialog, LabelsDialog, RenameDialog, ResizeDialog } from './settings-dialogs';
import { Switches } from './switches';

export function SettingsTab({ volume }: { volume: Volume }) {
  return (
    <div class="grid-2">
      <HistoryCard volume={volume} />
      <GeneralCard volume={volume} />
      <SnapshotCard volume={volume} />
      {may('admin') && <DangerCard volume={volume} />}
    </div>
  );
}

const ENCODING = { parity: 'parity (smallest)', undo: 'undo', redo: 'redo' } as const;

function HistoryCard({ volume }: { volume: Volume }) {
  const status = useResource<CdpStatus>(apiPath`/volumes/${volume.name}/cdp`).data;
  const change = may('operator') && (
    <Button onClick={() => openDialog(<HistoryDialog volume={volume} />)}>
      {volume.cdp ? 'Change' : 'Keep a history'}
    </Button>
  );
  if (!volume.cdp) {
    return (
      <Card title="History" actions={change}>
        <p class="inside soft">The volume keeps no history. It can return to its snapshots only.</p>
      </Card>
    );
  }
  const { encoding, compression, retain_seconds, retain_bytes } = volume.cdp;
  return (
    <Card title="History" actions={change}>
      <div class="inside">
        <Pairs
          of={[
            ['Reaches back', status && duration(status.window_seconds * 1000)],
            ['Keeps', retain_seconds ? duration(retain_seconds * 1000) : 'everything'],
            ['At most', retain_bytes ? bytes(retain_bytes) : undefined],
            ['Encoding', ENCODING[encoding]],
            ['Compression', compression],
            ['Writes', status && `${count(status.records)}, ${bytes(status.written)}`],
            [
              'Stored as',
              status &&
                `${bytes(status.stored)}, ${percent(status.stored, status.written)} of what was written`,
            ],
            ['State', status?.short && <Badge tone="b">shorter than configured, because space is low</Badge>],
          ]}
        />
      </div>
    </Card>
  );
}

function GeneralCard({ volume }: { volume: Volume }) {
  const actions = may('operator') && (
    <>
      <Button onClick={() => openDialog(<ResizeDialog volume={volume} />)}>Resize</Button>
      <Button onClick={() => openDialog(<RenameDialog volume={volume} />)}>Rename</Button>
      <Button onClick={() => openDialog(<LabelsDialog volume={volume} />)}>Labels</Button>
    </>
  );
  return (
    <Card title="General" actions={actions}>
      <div class="inside">
        <Pairs
          of={[
            ['Size', bytes(volume.size)],
            ['Used', `${bytes(volume.allocated)}, ${percent(volume.allocated, volume.size)}`],
            ['Block', bytes(volume.block_size)],
            ['Chunk', bytes(volume.chunk_size)],
            ['Created', <Time key="created" at={volume.created} />],
            ['Placed', placed(volume)],
            ['Direct writes', direct(volume)],
            [
              'Labels',
              Object.keys(volume.labels ?? {}).length > 0 ? (
                <Labels key="labels" of={volume.labels} />
              ) : (
                'none'
              ),
            ],
            ['UUID', <code key="uuid">{volume.uuid}</code>],
          ]}
        />
      </div>
    </Card>
  );
}

/** Which writes go to their places without a copy in the journal. */
function direct({ direct_min }: Volume): string {
  if (direct_min == null) return 'as the pool';
  return direct_min === 0 ? 'none' : `from ${bytes(direct_min)}`;
}

function placed({ on, placement }: Volume): string {
  const how = placement ? placement.policy : 'as the pool';
  return on ? `${how}, on ${on} only` : how;
}

function SnapshotCard({ volume }: { volume: Volume }) {
  return (
    <Card title="Snapshots and access">
      <div class="inside stack">
        <Pairs
          of={[
            ['Snapshots', `${count(volume.snapshots ?? 0)}, ${bytes(volume.snapshot_space ?? 0)}`],
            ['Reserve', `${volume.snapshot_reserve} % of the size`],
            ['Old snapshots', volume.auto_delete ? 'deleted by the server' : 'kept'],
            ['Preserves by', volume.method === 'row' ? 'redirect-on-write' : 'copy-on-write'],
            ['Clients may', volume.read_only ? 'read only' : 'read and write'],
            ['NBD', volume.nbd === false ? 'does not serve it' : 'serves it'],
          ]}
        />
        {may('admin') && <Switches volume={volume} />}
      </div>
    </Card>
  );
}

function DangerCard({ volume }: { volume: Volume }) {
  return (
    <Card title="Delete">
      <div class="inside stack">
        <p class="soft">
          The volume goes to the trash, with its snapshots and its history. You can restore it from there
          until it is purged.
        </p>
        <div>
          <Button
            kind="danger"
            icon="trash"
            onClick={() => openDialog(<DeleteVolumeDialog volumes={[volume]} />)}
          >
            Delete {volume.name}
          </Button>
        </div>
      </div>
    </Card>
  );
}
