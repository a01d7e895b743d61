/** Dialogs of iSCSI targets. */

import { useState } from 'preact/hooks';
import { apiPath, patch, post, query } from '../api/client';
import { reload } from '../api/resource';
import { hindcast } from '../lib/command';
import { plural } from '../lib/format';
import { FormDialog } from '../parts/dialog';
import { TextField } from '../parts/fields';
import { ConfirmDialog, RemoveDialog } from '../parts/remove-dialog';

export function CreateTargetDialog() {
  const [name, setName] = useState('');
  const [alias, setAlias] = useState('');
  const submit = async () => {
    await post('/targets', { name, alias: alias || undefined });
    await reload('/targets');
    return undefined;
  };
  return (
    <FormDialog
      title="Create a target"
      what="Creating the target"
      command={hindcast('target', 'create', name || 'NAME', ...(alias ? ['--alias', alias] : []))}
      submit="Create"
      disabled={name === ''}
      onSubmit={submit}
    >
      <TextField
        label="Name"
        value={name}
        onInput={setName}
        hint="An iSCSI name, or a short name that the server completes"
        first
      />
      <TextField label="Description" value={alias} onInput={setAlias} hint="Initiators show it." />
    </FormDialog>
  );
}

export function DeleteTargetDialog({ name, sessions }: { name: string; sessions: number }) {
  const force = sessions > 0;
  return (
    <RemoveDialog
      verb="Delete"
      object={`the target ${name}`}
      path={apiPath`/targets/${name}` + query({ force: force || undefined })}
      changes={['/targets']}
      command={hindcast('target', 'delete', name, force && '--force')}
      done={`Target ${name} was deleted.`}
    >
      <p>The volumes of its LUNs stay.</p>
      {force && (
        <p class="warning-text">
          {plural(sessions, 'initiator is', 'initiators are')} logged in. Their sessions end.
        </p>
      )}
    </RemoveDialog>
  );
}

/** Refuses initiators. Whoever is logged in loses the LUNs. */
export function DisableTargetDialog({ name, sessions }: { name: string; sessions: number }) {
  return (
    <ConfirmDialog
      title={`Disable ${name}`}
      what="Disabling the target"
      submit="Disable"
      run={() => patch(apiPath`/targets/${name}`, { enabled: false })}
      changes={['/targets']}
      command={hindcast('target', 'set', name, '--disabled')}
      done={`Target ${name} is disabled.`}
    >
      <p>
        Initiators no longer see the target, and can't log in. Its LUNs, rules and accounts stay, and you can
        enable it again.
      </p>
      {sessions > 0 && (
        <p class="warning-text">
          {plural(sessions, 'initiator is', 'initiators are')} logged in. Their sessions end, and file systems
          that are mounted there fail.
        </p>
      )}
    </ConfirmDialog>
  );
}
