/** Users, tokens and sessions of the API. */

import type { ComponentChildren, VNode } from 'preact';
import { useResource } from '../api/resource';
import type { AccessToken, ActiveSession, User } from '../api/schema';
import { Badge, Button, Card, Empty, Failure, PageHead, Skeleton, Time } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { type Column, Table } from '../parts/table';
import {
  AddUserDialog,
  ChangeUserDialog,
  CreateTokenDialog,
  EndSessionDialog,
  RemoveUserDialog,
  RevokeTokenDialog,
} from './access-dialogs';

const never = (time: string | null | undefined) =>
  time ? <Time at={time} /> : <span class="soft">never</span>;

const show = (dialog: VNode) => () => openDialog(dialog);

function RoleBadge({ role }: { role: string }) {
  return <Badge tone={role === 'admin' ? 'a' : undefined}>{role}</Badge>;
}

const USERS: Column<User>[] = [
  { name: 'Name', class: 'clip', cell: ({ name }) => name, sort: ({ name }) => name },
  { name: 'Role', cell: ({ role }) => <RoleBadge role={role} />, sort: ({ role }) => role },
  {
    name: 'Created',
    wideOnly: true,
    cell: ({ created }) => <Time at={created} />,
    sort: ({ created }) => created,
  },
  {
    name: 'Actions',
    class: 'actions',
    cell: (user) => (
      <span class="row-actions">
        <Button label={`Change ${user.name}`} onClick={show(<ChangeUserDialog user={user} />)}>
          Change
        </Button>
        <Button
          icon="trash"
          kind="quiet"
          label={`Remove ${user.name}`}
          onClick={show(<RemoveUserDialog name={user.name} />)}
        />
      </span>
    ),
  },
];

const TOKENS: Column<AccessToken>[] = [
  { name: 'Name', class: 'clip tight', cell: ({ name }) => name, sort: ({ name }) => name },
  {
    name: 'Role',
    cell: ({ role, views }) => (
      <>
        <RoleBadge role={role} />
        {views && role === 'viewer' && <Badge>views</Badge>}
      </>
    ),
    sort: ({ role }) => role,
  },
  {
    name: 'Volumes',
    class: 'clip',
    wideOnly: true,
    cell: ({ volumes }) => (volumes?.length ? volumes.join(', ') : 'all'),
  },
  { name: 'Last used', cell: ({ last_used }) => never(last_used), sort: ({ last_used }) => last_used ?? '' },
  {
    name: 'Expires',
    wideOnly: true,
    cell: ({ expires }) => never(expires),
    sort: ({ expires }) => expires ?? '9',
  },
  {
    name: 'Actions',
    class: 'actions',
    cell: (token) => (
      <Button
        icon="trash"
        kind="quiet"
        label={`Revoke ${token.name}`}
        onClick={show(<RevokeTokenDialog token={token} />)}
      />
    ),
  },
];

const SESSIONS: Column<ActiveSession>[] = [
  { name: 'User', class: 'clip', cell: ({ name }) => name, sort: ({ name }) => name },
  { name: 'Role', cell: ({ role }) => <RoleBadge role={role} /> },
  { name: 'Address', wideOnly: true, cell: ({ address }) => address },
  { name: 'Began', wideOnly: true, cell: ({ since }) => <Time at={since} />, sort: ({ since }) => since },
  { name: 'Last used', cell: ({ last_used }) => <Time at={last_used} />, sort: ({ last_used }) => last_used },
  {
    name: 'Actions',
    class: 'actions',
    cell: (session) => (
      <Button
        label={`End the session of ${session.name} at ${session.address}`}
        onClick={show(<EndSessionDialog session={session} />)}
      >
        End
      </Button>
    ),
  },
];

interface SectionProps<T> {
  title: string;
  path: string;
  columns: Column<T>[];
  keyOf: (row: T) => string;
  command: string;
  about: string;
  action?: ComponentChildren;
}

function Section<T>({ title, path, columns, keyOf, command, about, action }: SectionProps<T>) {
  const { data, error, reload: again } = useResource<T[]>(path, 30);
  return (
    <Card title={title} actions={action}>
      {error && !data && (
        <Failure what={`The ${title.toLowerCase()} could not be read.`} error={error} retry={again} />
      )}
      {!data && !error && <Skeleton />}
      {data?.length === 0 && (
        <Empty title={`No ${title.toLowerCase()}`} command={command}>
          {about}
        </Empty>
      )}
      {data && data.length > 0 && (
        <Table label={title} columns={columns} rows={data} keyOf={keyOf} sortBy={columns[0]?.name} />
      )}
    </Card>
  );
}

export function AccessPage() {
  return (
    <>
      <PageHead title="Access" />
      <Section<User>
        title="Users"
        path="/access/users"
        columns={USERS}
        keyOf={({ name }) => name}
        command="hindcast access user add anna --role operator"
        about="A user logs in here with a name and a password."
        action={
          <Button icon="plus" onClick={show(<AddUserDialog />)}>
            Add a user
          </Button>
        }
      />
      <Section<AccessToken>
        title="Tokens"
        path="/access/tokens"
        columns={TOKENS}
        keyOf={({ name }) => name}
        command="hindcast access token create backup --role operator"
        about="A token lets a program use the API."
        action={
          <Button icon="plus" onClick={show(<CreateTokenDialog />)}>
            Create a token
          </Button>
        }
      />
      <Section<ActiveSession>
        title="Sessions"
        path="/access/sessions"
        columns={SESSIONS}
        keyOf={({ id }) => id}
        command="hindcast console"
        about="A session is a browser that is logged in."
      />
    </>
  );
}
