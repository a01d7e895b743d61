/** Dialogs of users, tokens and sessions. */

import { useState } from 'preact/hooks';
import { apiPath, patch, post, session } from '../api/client';
import { reload } from '../api/resource';
import type { AccessToken, ActiveSession, CreatedToken, Role, User } from '../api/schema';
import { hindcast } from '../lib/command';
import { parseSeconds, secondsArgument } from '../lib/format';
import { Command, Time } from '../parts/basics';
import { Dialog, DoneFooter, FormDialog, STAYS } from '../parts/dialog';
import { CheckField, SelectField, TextField, useName } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';

/** Characters of the longest name of a user or a token. */
const LONGEST = 64;

/** Characters of the shortest password. */
const SHORTEST_PASSWORD = 12;

type UserRole = 'viewer' | 'operator' | 'admin';

const USER_ROLES: [UserRole, string][] = [
  ['viewer', 'Viewer'],
  ['operator', 'Operator'],
  ['admin', 'Admin'],
];

const TOKEN_ROLES: [Role, string][] = [...USER_ROLES, ['metrics', 'Metrics'], ['replicate', 'Replicate']];

const MAY: Record<Role, string> = {
  viewer: 'Looks at everything but users, tokens and the audit',
  operator: 'Also does what loses nothing, such as snapshots and new volumes',
  admin: 'Also deletes, goes back, and decides who gets in',
  metrics: 'Reads /metrics, and nothing else',
  replicate: 'Reads the replication stream of volumes, and nothing else',
};

/** The state of a new password that a person types twice. */
function usePassword() {
  const [one, setOne] = useState('');
  const [two, setTwo] = useState('');
  // The server counts characters, not the units of UTF-16.
  const short = one !== '' && [...one].length < SHORTEST_PASSWORD;
  const differs = two !== '' && one !== two;
  return {
    one,
    two,
    setOne,
    setTwo,
    password: one !== '' && !short && one === two ? one : null,
    empty: one === '' && two === '',
    problems: [
      short ? `A password has at least ${SHORTEST_PASSWORD} characters.` : null,
      differs ? 'The two passwords differ.' : null,
    ] as const,
  };
}

function PasswordFields({ of, label }: { of: ReturnType<typeof usePassword>; label: string }) {
  return (
    <div class="columns">
      <TextField
        label={label}
        type="password"
        value={of.one}
        onInput={of.setOne}
        problem={of.problems[0]}
        hint={`At least ${SHORTEST_PASSWORD} characters`}
        autocomplete="new-password"
      />
      <TextField
        label="The same again"
        type="password"
        value={of.two}
        onInput={of.setTwo}
        problem={of.problems[1]}
        autocomplete="new-password"
      />
    </div>
  );
}

export function AddUserDialog() {
  const { name, valid, field } = useName('', LONGEST);
  const [role, setRole] = useState<UserRole>('operator');
  const password = usePassword();
  const submit = async () => {
    await post<User>('/access/users', { name, role, password: password.password });
    await reload('/access/users');
    return { text: `User ${name} was added.` };
  };
  return (
    <FormDialog
      title="Add a user"
      what="Adding the user"
      command={hindcast('access', 'user', 'add', name || 'NAME', '--role', role)}
      submit="Add the user"
      disabled={!valid || password.password === null}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} />
      <SelectField label="Role" value={role} onInput={setRole} options={USER_ROLES} hint={MAY[role]} />
      <PasswordFields of={password} label="Password" />
    </FormDialog>
  );
}

/** Gives a user another role, a new password, or both. */
export function ChangeUserDialog({ user }: { user: User }) {
  const [role, setRole] = useState<UserRole>(user.role as UserRole);
  const password = usePassword();
  const changed = role !== user.role;
  const submit = async () => {
    await patch<User>(apiPath`/access/users/${user.name}`, {
      role: changed ? role : undefined,
      password: password.password ?? undefined,
    });
    await Promise.all([reload('/access/users'), reload('/access/sessions')]);
    return { text: `User ${user.name} was changed.` };
  };
  const commands = [
    changed && hindcast('access', 'user', 'role', user.name, role),
    !password.empty && hindcast('access', 'user', 'password', user.name),
  ].filter((command) => command !== false);
  return (
    <FormDialog
      title={`Change ${user.name}`}
      what="Changing the user"
      command={commands.join(' && ') || hindcast('access', 'user', 'role', user.name, role)}
      submit="Change"
      disabled={(!changed && password.empty) || (!password.empty && password.password === null)}
      onSubmit={submit}
    >
      <p class="soft">The change ends the sessions of {user.name}, who then logs in again.</p>
      <SelectField label="Role" value={role} onInput={setRole} options={USER_ROLES} hint={MAY[role]} />
      <PasswordFields of={password} label="New password" />
    </FormDialog>
  );
}

export function RemoveUserDialog({ name }: { name: string }) {
  const own = session.value?.kind === 'user' && session.value.name === name;
  return (
    <RemoveDialog
      verb="Remove"
      object={`the user ${name}`}
      path={apiPath`/access/users/${name}`}
      changes={['/access/users', '/access/sessions']}
      command={hindcast('access', 'user', 'remove', name)}
      done={`User ${name} was removed.`}
    >
      <p>The sessions of {name} end, and the name and the password no longer open the console.</p>
      {own && <p class="warning-text">You are logged in as this user. The log-in page appears afterwards.</p>}
    </RemoveDialog>
  );
}

/** Names and patterns of volumes, from a text with commas or spaces between them. */
const namesOf = (text: string) => text.split(/[\s,]+/).filter(Boolean);

export function CreateTokenDialog() {
  const { name, valid, field } = useName('', LONGEST);
  const [role, setRole] = useState<Role>('viewer');
  const [scope, setScope] = useState('');
  const [expires, setExpires] = useState('90d');
  const [views, setViews] = useState(false);
  const [made, setMade] = useState<CreatedToken | null>(null);
  if (made) return <Secret made={made} />;
  const volumes = namesOf(scope);
  const seconds = expires === '' ? undefined : parseSeconds(expires) || null;
  // Roles above it open views anyway.
  const opensViews = views && role === 'viewer';
  const submit = async () => {
    const body = { name, role, volumes, views: opensViews, expires_seconds: seconds };
    setMade(await post<CreatedToken>('/access/tokens', body));
    void reload('/access/tokens');
    return STAYS;
  };
  return (
    <FormDialog
      title="Create a token"
      what="Creating the token"
      command={hindcast(
        ...['access', 'token', 'create', name || 'NAME', '--role', role],
        ...(volumes.length > 0 ? ['--volumes', volumes.join(',')] : []),
        opensViews && '--views',
        ...(seconds ? ['--expires', secondsArgument(seconds)] : []),
      )}
      submit="Create the token"
      disabled={!valid || seconds === null}
      onSubmit={submit}
    >
      <p class="soft">A token lets a program use the API without a person's password.</p>
      <TextField label="Name" {...field} />
      <SelectField label="Role" value={role} onInput={setRole} options={TOKEN_ROLES} hint={MAY[role]} />
      {role === 'viewer' && (
        <CheckField
          label="Its holder may open views, and so read the content of volumes"
          checked={views}
          onInput={setViews}
        />
      )}
      <div class="columns">
        <TextField
          label="Volumes"
          value={scope}
          onInput={setScope}
          hint="Names, or patterns such as db*. Empty: everything that the role allows"
        />
        <TextField
          label="Expires after"
          value={expires}
          onInput={setExpires}
          problem={seconds === null ? 'Use a time such as 12h, 90d or 52w.' : null}
          hint="A time such as 90d. Empty: never"
        />
      </div>
    </FormDialog>
  );
}

function Secret({ made: { secret, token } }: { made: CreatedToken }) {
  return (
    <Dialog title={`Token ${token.name} was created`}>
      <p>Copy the secret now. The server keeps only its hash, and can't show it again.</p>
      <Command text={secret} label="Copy the secret" />
      <p class="soft">
        A program sends it as <code>Authorization: Bearer SECRET</code>. The command line takes it from
        HINDCAST_TOKEN.{' '}
        {token.expires ? (
          <>
            The token expires <Time at={token.expires} />.
          </>
        ) : (
          'The token never expires.'
        )}
      </p>
      <DoneFooter />
    </Dialog>
  );
}

export function RevokeTokenDialog({ token: { name, last_used } }: { token: AccessToken }) {
  return (
    <RemoveDialog
      verb="Revoke"
      object={`the token ${name}`}
      path={apiPath`/access/tokens/${name}`}
      changes={['/access/tokens']}
      command={hindcast('access', 'token', 'revoke', name)}
      done={`Token ${name} was revoked.`}
    >
      <p>
        The server refuses every program that uses the token from now on. A revoked token can't come back.
      </p>
      <p class="soft">
        {last_used ? (
          <>
            A program used it last <Time at={last_used} />.
          </>
        ) : (
          'No program has used it.'
        )}
      </p>
    </RemoveDialog>
  );
}

export function EndSessionDialog({ session: { id, name, address, last_used } }: { session: ActiveSession }) {
  return (
    <RemoveDialog
      verb="End"
      object={`the session of ${name}`}
      path={apiPath`/access/sessions/${id}`}
      changes={['/access/sessions']}
      command={hindcast('access', 'session', 'end', id)}
      done={`The session of ${name} ended.`}
    >
      <p>
        The browser at {address} shows the log-in page. It was used last <Time at={last_used} />.
      </p>
    </RemoveDialog>
  );
}
