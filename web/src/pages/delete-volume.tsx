import { apiPath, post, query, remove } from '../api/client';
import { reloadAll } from '../api/resource';
import type { DeletedVolume, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { plural } from '../lib/format';
import { FormDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { navigate } from '../router';
import { clientsOf } from './clients';

function restore(ids: string[]): Promise<void> {
  return attempt('Restoring', async () => {
    for (const id of ids) await post(apiPath`/trash/${id}/restore`, {});
    reloadAll();
  });
}

/** Moves volumes to the trash. The person types the name, or the number of several volumes. */
export function DeleteVolumeDialog({ volumes }: { volumes: Volume[] }) {
  const connected = volumes.reduce((sum, volume) => sum + clientsOf(volume), 0);
  const word = volumes.length === 1 ? (volumes[0]?.name ?? '') : `delete ${volumes.length}`;
  const force = connected > 0;
  const what = volumes.length === 1 ? word : plural(volumes.length, 'volume');
  const submit = async () => {
    const deleted: string[] = [];
    for (const { name } of volumes) {
      const { trash } = await remove<DeletedVolume>(
        apiPath`/volumes/${name}` + query({ force: force || undefined }),
      );
      if (trash) deleted.push(trash.uuid);
    }
    navigate('/volumes');
    reloadAll();
    const action = deleted.length > 0 ? { label: 'Undo', run: () => void restore(deleted) } : undefined;
    return { text: `${what} moved to the trash.`, action };
  };
  return (
    <FormDialog
      title={`Delete ${what}`}
      what="The deletion"
      danger
      command={volumes.map(({ name }) => hindcast('volume', 'delete', name, force && '--force')).join(' && ')}
      submit="Move to the trash"
      confirm={word}
      onSubmit={submit}
    >
      <p>
        {volumes.length === 1 ? 'The volume goes' : 'The volumes go'} to the trash, with snapshots and
        history, and can be restored until the purge.
      </p>
      {force && (
        <p class="warning-text">
          {plural(connected, 'client uses', 'clients use')} what you delete. Their next request fails.
        </p>
      )}
    </FormDialog>
  );
}
