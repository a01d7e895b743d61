/** Users, tokens and sessions of the API. */

import { apiPath, remove } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { AccessToken, ActiveSession, User } from '../api/schema';
import { Badge, Button, Card, Empty, Failure, PageHead, Skeleton, Time } from '../parts/basics';
import { attempt } from '../parts/notices';
import { type Column, Table } from '../parts/table';

const never = (time: string | null | undefined) =>
  time ? <Time at={time} /> : <span class="soft">never</span>;

const USERS: Column<User>[] = [
  { name: 'Name', cell: ({ name }) => name, sort: ({ name }) => name },
  {
    name: 'Role',
    cell: ({ role }) => <Badge tone={role === 'admin' ? 'a' : undefined}>{role}</Badge>,
    sort: ({ role }) => role,
  },
  {
    name: 'Created',
    wideOnly: true,
    cell: ({ created }) => <Time at={created} />,
    sort: ({ created }) => created,
  },
];

const TOKENS: Column<AccessToken>[] = [
  { name: 'Name', cell: ({ name }) => name, sort: ({ name }) => name },
  { name: 'Role', cell: ({ role }) => <Badge>{role}</Badge>, sort: ({ role }) => role },
  {
    name: 'Volumes',
    class: 'clip',
    cell: ({ volumes }) => (volumes?.length ? volumes.join(', ') : 'all'),
  },
  { name: 'Last used', cell: ({ last_used }) => never(last_used), sort: ({ last_used }) => last_used ?? '' },
  {
    name: 'Expires',
    wideOnly: true,
    cell: ({ expires }) => never(expires),
    sort: ({ expires }) => expires ?? '9',
  },
];

function end(id: string): Promise<void> {
  return attempt('Ending the session', async () => {
    await remove(apiPath`/access/sessions/${id}`);
    await reload('/access/sessions');
  });
}

const SESSIONS: Column<ActiveSession>[] = [
  {
    name: 'User',
    cell: ({ name }) => name,
    sort: ({ name }) => name,
  },
  { name: 'Role', cell: ({ role }) => <Badge>{role}</Badge> },
  { name: 'Address', cell: ({ address }) => address },
  { name: 'Began', wideOnly: true, cell: ({ since }) => <Time at={since} />, sort: ({ since }) => since },
  { name: 'Last used', cell: ({ last_used }) => <Time at={last_used} />, sort: ({ last_used }) => last_used },
  {
    name: 'Actions',
    class: 'actions',
    cell: ({ id }) => <Button onClick={() => end(id)}>End</Button>,
  },
];

interface SectionProps<T> {
  title: string;
  path: string;
  columns: Column<T>[];
  keyOf: (row: T) => string;
  command: string;
  about: string;
}

function Section<T>({ title, path, columns, keyOf, command, about }: SectionProps<T>) {
  const { data, error, reload: again } = useResource<T[]>(path, 30);
  return (
    <Card title={title}>
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
      />
      <Section<AccessToken>
        title="Tokens"
        path="/access/tokens"
        columns={TOKENS}
        keyOf={({ name }) => name}
        command="hindcast access token create backup --role operator"
        about="A token lets a program use the API."
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
