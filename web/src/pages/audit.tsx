/** Who changed what, or was refused. */

import { useResource } from '../api/resource';
import type { AuditEntry } from '../api/schema';
import { latency } from '../lib/format';
import { Badge, Card, Empty, Failure, PageHead, Skeleton, Time } from '../parts/basics';
import { SearchField } from '../parts/fields';
import { type Column, Table } from '../parts/table';
import { parameters, setParameters } from '../router';

/** Method and path of a request, without what all paths begin with. */
function requestText({ method, subject }: AuditEntry): string {
  return `${method} ${subject.replace('/api/v1', '')}`;
}

const COLUMNS: Column<AuditEntry>[] = [
  { name: 'Time', cell: ({ time }) => <Time at={time} />, sort: ({ time }) => time },
  { name: 'Who', cell: ({ who }) => who ?? 'unknown', sort: ({ who }) => who ?? '' },
  {
    name: 'Address',
    wideOnly: true,
    cell: ({ address }) => (address === 'unix' ? 'this machine' : address),
    sort: ({ address }) => address,
  },
  {
    name: 'Request',
    class: 'clip tight',
    cell: (entry) => <code>{requestText(entry)}</code>,
    sort: requestText,
  },
  {
    name: 'Result',
    number: true,
    cell: ({ status }) => <Badge tone={status >= 400 ? 'b' : undefined}>{status}</Badge>,
    sort: ({ status }) => status,
  },
  {
    name: 'Took',
    number: true,
    wideOnly: true,
    cell: ({ micros }) => latency(micros / 1e6),
    sort: ({ micros }) => micros,
  },
];

export function AuditPage() {
  const { data, error, reload } = useResource<AuditEntry[]>('/audit?limit=1000', 15);
  const search = parameters.value.get('search') ?? '';
  const words = search.toLowerCase();
  const shown = data?.filter((entry) =>
    `${entry.who} ${entry.address} ${entry.method} ${entry.route} ${entry.subject}`
      .toLowerCase()
      .includes(words),
  );
  return (
    <>
      <PageHead title="Audit">
        <SearchField
          label="Search the audit"
          value={search}
          onInput={(value) => setParameters({ search: value || null })}
        />
      </PageHead>
      <Card>
        {error && !data && <Failure what="The audit could not be read." error={error} retry={reload} />}
        {!data && !error && <Skeleton lines={8} />}
        {shown?.length === 0 && (
          <Empty title="No entry matches" command="hindcast audit --since -1d">
            The server writes an entry for each request that changes something, or is refused.
          </Empty>
        )}
        {shown && shown.length > 0 && (
          <Table
            label="Audit"
            columns={COLUMNS}
            rows={shown}
            keyOf={({ time, route }) => time + route}
            sortBy="Time"
            descending
          />
        )}
      </Card>
    </>
  );
}
