import { useState } from 'preact/hooks';
import { apiPath, post } from '../../api/client';
import { reload } from '../../api/resource';
import type { Access } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { FormDialog } from '../../parts/dialog';
import { SelectField, TextField } from '../../parts/fields';

/** Adds a rule for NBD clients of a volume, as the last one. */
export function NbdRuleDialog({ volume }: { volume: string }) {
  const [addresses, setAddresses] = useState('');
  const [certificate, setCertificate] = useState('');
  const [access, setAccess] = useState<Access>('read_write');
  const list = addresses.split(/[\s,]+/).filter(Boolean);
  const path = apiPath`/volumes/${volume}/nbd-access`;
  const verb = access === 'denied' ? 'deny' : 'allow';
  const submit = async () => {
    await post(`${path}/rules`, { access, addresses: list, certificate: certificate || undefined });
    await reload(path);
    return undefined;
  };
  return (
    <FormDialog
      title={`Add an NBD rule to ${volume}`}
      what="Adding the rule"
      command={hindcast(
        ...['access', verb, volume, '--nbd'],
        ...list.flatMap((address) => ['--address', address]),
        ...(certificate ? ['--certificate', certificate] : []),
        access === 'read_only' && '--read-only',
      )}
      submit="Add the rule"
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
    </FormDialog>
  );
}
