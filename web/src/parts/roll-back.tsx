/** What the ways back of a volume share: the warning about its clients, and the way forth again. */

import { apiPath, post } from '../api/client';
import type { RolledBack } from '../api/schema';
import { plural } from '../lib/format';
import type { Message } from './dialog';
import { attempt, notify } from './notices';

/** Returns a volume to a snapshot of its content before a rollback. */
function undo(volume: string, snapshot: string): Promise<void> {
  return attempt('Undoing the rollback', async () => {
    await post(apiPath`/volumes/${volume}/snapshots/${snapshot}/rollback`, { force: true });
    notify(`${volume} has its content from before the rollback again.`);
  });
}

/** Says what a volume has now, where its content from before is, and how to get that back. */
export function rolledBack(now: string, { volume, undo: snapshot }: RolledBack): Message {
  return {
    text: `${now} Snapshot ${snapshot.name} keeps its content from before.`,
    action: { label: 'Undo', run: () => void undo(volume.name, snapshot.name) },
  };
}

interface WarningProps {
  clients: number;
  /** The clients, if they are known. */
  names?: string;
  /** What they use. */
  one?: string;
}

/** Warns about the clients of a volume that goes back. */
export function ClientsWarning({ clients, names, one = 'the volume' }: WarningProps) {
  return (
    <p class="warning-text">
      {plural(clients, 'client uses', 'clients use')} {one}
      {names && `: ${names}`}. Stop their programs first. The server closes NBD connections and reports the
      change to iSCSI initiators.
    </p>
  );
}
