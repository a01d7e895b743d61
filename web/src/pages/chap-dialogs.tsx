/** The CHAP accounts of a target, or those of all targets that have none of their own. */

import { useState } from 'preact/hooks';
import { apiPath, put } from '../api/client';
import { reload } from '../api/resource';
import type { Chap } from '../api/schema';
import { hindcast } from '../lib/command';
import { Badge, Button } from '../parts/basics';
import { FormDialog, openDialog } from '../parts/dialog';
import { SelectField, TextField } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';
import type { TargetScope } from './target-scope';

interface ChapProps {
  scope: TargetScope;
  chap: Chap | null | undefined;
}

export const accountsOf = (chap: Chap | null | undefined) =>
  chap ? [chap.user, ...(chap.others ?? [])] : [];

const SECRET = /^[\x20-\x7e]{12,255}$/;

/** What happens to the way in which the target proves itself to initiators. */
type Mutual = 'stays' | 'set' | 'off';

/** Adds an account, or gives one a new secret. */
export function ChapDialog({ scope, chap }: ChapProps) {
  const [user, setUser] = useState('');
  const [secret, setSecret] = useState('');
  const [mutual, setMutual] = useState<Mutual>('stays');
  const [mutualUser, setMutualUser] = useState(chap?.mutual_user ?? '');
  const [mutualSecret, setMutualSecret] = useState('');
  const mutualValid = mutual !== 'set' || (mutualUser !== '' && SECRET.test(mutualSecret));
  const same = mutual === 'set' && mutualSecret !== '' && mutualSecret === secret;
  const submit = async () => {
    await put(`${scope.path}/chap`, {
      user,
      secret,
      ...(mutual === 'set' ? { mutual_user: mutualUser, mutual_secret: mutualSecret } : {}),
      ...(mutual === 'off' ? { no_mutual: true } : {}),
    });
    await reload(scope.changes);
    return { text: `Account ${user} of ${scope.text} was set.` };
  };
  const words = ['target', 'chap', scope.word, '--user', user || 'USER', '--secret-file', 'FILE'];
  const set = ['--mutual-user', mutualUser || 'USER', '--mutual-secret-file', 'FILE2'];
  return (
    <FormDialog
      title={`CHAP of ${scope.text}`}
      what="Setting the account"
      command={hindcast(...words, ...(mutual === 'set' ? set : []), mutual === 'off' && '--no-mutual')}
      submit="Set the account"
      disabled={user === '' || !SECRET.test(secret) || !mutualValid || same}
      onSubmit={submit}
    >
      <p class="soft">
        Initiators prove that they know the secret of an account before they log in. An account that there is
        already gets the new secret.
      </p>
      <Accounts scope={scope} chap={chap} />
      <div class="columns">
        <TextField label="Account" value={user} onInput={setUser} first />
        <SecretField label="Secret" value={secret} onInput={setSecret} />
      </div>
      <SelectField
        label="The target proves itself to initiators"
        value={mutual}
        onInput={setMutual}
        options={[
          ['stays', chap?.mutual_user ? `As ${chap.mutual_user}, as before` : 'Not, as before'],
          ['set', 'With this account (mutual CHAP)'],
          ...(chap?.mutual_user ? [['off', 'Not any more'] as const] : []),
        ]}
      />
      {mutual === 'set' && (
        <div class="columns">
          <TextField label="Account of the target" value={mutualUser} onInput={setMutualUser} />
          <SecretField
            label="Secret of the target"
            value={mutualSecret}
            onInput={setMutualSecret}
            problem={same ? 'Use another secret than that of the initiators.' : null}
          />
        </div>
      )}
    </FormDialog>
  );
}

interface SecretProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  problem?: string | null;
}

function SecretField(props: SecretProps) {
  return <TextField {...props} type="password" hint="At least 12 characters" autocomplete="new-password" />;
}

function Accounts({ scope, chap }: ChapProps) {
  const accounts = accountsOf(chap);
  if (accounts.length === 0) return <p>There is no account: initiators need none.</p>;
  return (
    <ul class="list accounts" aria-label="Accounts">
      {accounts.map((user) => (
        <li key={user} class="still">
          {user}
          <span class="push">
            <Button
              icon="trash"
              kind="quiet"
              label={`Remove the account ${user}`}
              onClick={() =>
                openDialog(<RemoveAccountDialog scope={scope} user={user} last={accounts.length === 1} />)
              }
            />
          </span>
        </li>
      ))}
      {chap?.mutual_user && (
        <li class="still">
          {chap.mutual_user} <Badge>the target itself</Badge>
        </li>
      )}
    </ul>
  );
}

function RemoveAccountDialog({ scope, user, last }: { scope: TargetScope; user: string; last: boolean }) {
  const words = last ? ['--off'] : ['--remove', user];
  return (
    <RemoveDialog
      verb="Remove"
      object={`the account ${user}`}
      path={last ? `${scope.path}/chap` : `${scope.path}${apiPath`/chap/${user}`}`}
      changes={[scope.changes]}
      command={hindcast('target', 'chap', scope.word, ...words)}
      done={`Account ${user} of ${scope.text} was removed.`}
    >
      <p class="warning-text">
        Its sessions end.
        {last && ' It is the last account: from then on, rules alone decide who may log in.'}
      </p>
    </RemoveDialog>
  );
}
