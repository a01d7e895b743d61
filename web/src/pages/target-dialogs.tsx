/** Dialogs of iSCSI targets. */

import { useState } from 'preact/hooks';
import { apiPath, post, put, query } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Access, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { plural } from '../lib/format';
import { FormDialog } from '../parts/dialog';
import { SelectField, TextField } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';

async function done(): Promise<undefined> {
  await reload('/targets');
}

export function CreateTargetDialog() {
  const [name, setName] = useState('');
  const [alias, setAlias] = useState('');
  const submit = async () => {
    await post('/targets', { name, alias: alias || undefined });
    return done();
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

export function AddLunDialog({ target }: { target: string }) {
  const volumes = useResource<Volume[]>('/volumes').data ?? [];
  const [volume, setVolume] = useState('');
  const chosen = volume || (volumes[0]?.name ?? '');
  const submit = async () => {
    await post(apiPath`/targets/${target}/luns`, { volume: chosen });
    return done();
  };
  return (
    <FormDialog
      title={`Add a LUN to ${target}`}
      what="Adding the LUN"
      command={hindcast('target', 'add-lun', target, '--volume', chosen || 'VOLUME')}
      submit="Add"
      disabled={chosen === ''}
      onSubmit={submit}
    >
      <SelectField
        label="Volume"
        value={chosen}
        onInput={setVolume}
        options={volumes.map(({ name }) => [name, name] as const)}
      />
    </FormDialog>
  );
}

export function AddRuleDialog({ target }: { target: string }) {
  const [initiator, setInitiator] = useState('');
  const [address, setAddress] = useState('');
  const [access, setAccess] = useState<Access>('read_write');
  const submit = async () => {
    await post(apiPath`/targets/${target}/rules`, { initiator, access, address: address || undefined });
    return done();
  };
  const verb = access === 'denied' ? 'deny' : 'allow';
  const words = [
    'target',
    verb,
    target,
    '--initiator',
    initiator || '*',
    ...(address ? ['--address', address] : []),
  ];
  return (
    <FormDialog
      title={`Add a rule to ${target}`}
      what="Adding the rule"
      command={hindcast(...words, access === 'read_only' && '--read-only')}
      submit="Add the rule"
      disabled={initiator === ''}
      onSubmit={submit}
    >
      <SelectField
        label="Initiators may"
        value={access}
        onInput={setAccess}
        options={[
          ['read_write', 'Read and write'],
          ['read_only', 'Read only'],
          ['denied', 'Not log in'],
        ]}
      />
      <TextField
        label="Initiator"
        value={initiator}
        onInput={setInitiator}
        hint="A name. * matches any text, ? matches one character."
        first
      />
      <TextField
        label="Address"
        value={address}
        onInput={setAddress}
        hint="An address or a range such as 10.0.0.0/8. Empty: every address"
      />
    </FormDialog>
  );
}

const SECRET = /^[\x20-\x7e]{12,255}$/;

export function ChapDialog({ target }: { target: string }) {
  const [user, setUser] = useState('');
  const [secret, setSecret] = useState('');
  const submit = async () => {
    await put(apiPath`/targets/${target}/chap`, { user, secret });
    return done();
  };
  return (
    <FormDialog
      title={`CHAP account of ${target}`}
      what="Setting the account"
      command={hindcast('target', 'chap', target, '--user', user || 'USER', '--secret-file', 'FILE')}
      submit="Set the account"
      disabled={user === '' || !SECRET.test(secret)}
      onSubmit={submit}
    >
      <p class="soft">
        Initiators prove that they know the secret before they log in. An account of this name gets the new
        secret.
      </p>
      <TextField label="Account" value={user} onInput={setUser} first />
      <TextField
        label="Secret"
        type="password"
        value={secret}
        onInput={setSecret}
        hint="At least 12 characters"
        autocomplete="new-password"
      />
    </FormDialog>
  );
}
