import { useState } from 'preact/hooks';
import { post } from '../api/client';
import { reload } from '../api/resource';
import type { Access } from '../api/schema';
import { hindcast } from '../lib/command';
import { FormDialog } from '../parts/dialog';
import { placeOf, SelectField, TextField } from '../parts/fields';
import type { NbdScope } from './nbd-rules';

/** Adds a rule for NBD clients of a volume, or of all volumes. */
export function NbdRuleDialog({ scope }: { scope: NbdScope }) {
  const [addresses, setAddresses] = useState('');
  const [certificate, setCertificate] = useState('');
  const [access, setAccess] = useState<Access>('read_write');
  const [place, setPlace] = useState('');
  const list = addresses.split(/[\s,]+/).filter(Boolean);
  const at = placeOf(place);
  const submit = async () => {
    const rule = { access, addresses: list, certificate: certificate || undefined, at };
    await post(`${scope.path}/rules`, rule);
    await reload(scope.path);
    return undefined;
  };
  return (
    <FormDialog
      title={`Add an NBD rule to ${scope.text}`}
      what="Adding the rule"
      command={hindcast(
        ...['access', access === 'denied' ? 'deny' : 'allow', scope.word, '--nbd'],
        ...list.flatMap((address) => ['--address', address]),
        ...(certificate ? ['--certificate', certificate] : []),
        access === 'read_only' && '--read-only',
        ...(at ? ['--at', String(at)] : []),
      )}
      submit="Add the rule"
      disabled={at === null}
      onSubmit={submit}
    >
      <SelectField
        label="Clients may"
        value={access}
        onInput={setAccess}
        options={[
          ['read_write', 'Read and write'],
          ['read_only', 'Read only'],
          ['denied', 'Not connect'],
        ]}
      />
      <TextField
        label="Addresses"
        value={addresses}
        onInput={setAddresses}
        hint="Addresses or ranges such as 10.0.0.0/8. Empty: every address"
        first
      />
      <TextField
        label="Certificate"
        value={certificate}
        onInput={setCertificate}
        hint="Subject of the client's certificate, such as CN=vm1. Empty: any, or none"
      />
      <TextField label="Place" value={place} onInput={setPlace} hint="1 is the first. Empty: the last" />
    </FormDialog>
  );
}
