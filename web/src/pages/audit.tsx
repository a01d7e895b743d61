/** Who changed what, or was refused. */

import { useEffect, useMemo, useState } from 'preact/hooks';
import { get, query } from '../api/client';
import { useResource } from '../api/resource';
import type { AuditEntry } from '../api/schema';
import { now } from '../lib/clock';
import { hindcast } from '../lib/command';
import { latency } from '../lib/format';
import { toRfc3339, typedTime } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, PageHead, Pairs, Skeleton, Time } from '../parts/basics';
import { Dialog, DoneFooter, openDialog } from '../parts/dialog';
import { SearchField, TextField } from '../parts/fields';
import { attempt } from '../parts/notices';
import { type Column, Table } from '../parts/table';
import { parameters, setParameters } from '../router';

/** Entries that the console reads at once. */
const PAGE = 1000;

/** The hash that stands in the audit's first entry, which has none before it. */
const FIRST = /^0+$/;

/** Time without a key after which a filter is asked for. */
const TYPING = 400;

/** Method and path of a request, without what all paths begin with. */
function requestText({ method, subject }: AuditEntry): string {
  return `${method} ${subject.replace('/api/v1', '')}`;
}

const keyOf = ({ at, time, route, prev }: AuditEntry) => at ?? time + route + prev;

const COLUMNS: Column<AuditEntry>[] = [
  { name: 'Time', cell: ({ time }) => <Time at={time} />, sort: ({ time }) => time },
  { name: 'Who', cell: ({ who }) => who ?? 'unknown', sort: ({ who }) => who ?? '' },
  {
    name: 'Address',
    wideOnly: true,
    cell: ({ address }) => addressText(address),
    sort: ({ address }) => address,
  },
  {
    name: 'Request',
    class: 'clip tight',
    cell: (entry) => (
      <button
        type="button"
        class="text-button"
        aria-label={`Show ${requestText(entry)}`}
        onClick={() => openDialog(<EntryDialog entry={entry} />)}
      >
        <code>{requestText(entry)}</code>
      </button>
    ),
    sort: requestText,
  },
  {
    name: 'Asked',
    class: 'clip medium-hide',
    cell: ({ asked }) => asked && <code class="soft">{JSON.stringify(asked)}</code>,
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

const addressText = (address: string) => (address === 'unix' ? 'this machine' : address);

/** Everything that the audit has of a request. Secrets are not in it. */
function EntryDialog({ entry }: { entry: AuditEntry }) {
  const { time, who, kind, role, address, status, error, micros, asked, suppressed } = entry;
  return (
    <Dialog title={requestText(entry)} wide>
      <Pairs
        of={[
          ['Time', <Time key="time" at={time} />],
          ['Who', [who ?? 'unknown', kind && `by ${kind}`, role].filter(Boolean).join(', ')],
          ['Address', addressText(address)],
          ['Result', error ? `${status}: ${error}` : String(status)],
          ['Took', latency(micros / 1e6)],
          ['Refused before', suppressed && `${suppressed} requests without an entry`],
        ]}
      />
      {asked && (
        <div class="stack tight">
          <span class="small soft">Asked</span>
          <pre class="asked">{JSON.stringify(asked, null, 2)}</pre>
        </div>
      )}
      <DoneFooter />
    </Dialog>
  );
}

/** A text that has not changed for a while, so that not every key is a request. */
function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), TYPING);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

/** The entries that match the filters: the newest, kept up to date, and earlier ones on request. */
function useEntries(who: string, since: string | undefined) {
  const filter = { who: who || undefined, since, limit: PAGE };
  const path = `/audit${query(filter)}`;
  const { data, error, reload } = useResource<AuditEntry[]>(path, 15);
  const [older, setOlder] = useState<AuditEntry[]>([]);
  const [ended, setEnded] = useState(false);
  useEffect(() => {
    setOlder([]);
    setEnded(false);
  }, [path]);
  const all = useMemo(() => {
    const byKey = new Map([...older, ...(data ?? [])].map((entry) => [keyOf(entry), entry]));
    return [...byKey.values()];
  }, [older, data]);
  const first = all[0];
  const more = () =>
    attempt('Reading earlier entries', async () => {
      const page = await get<AuditEntry[]>(`/audit${query({ ...filter, before: first?.at ?? undefined })}`);
      // A page can be short, because its size has a limit. Only the last one is empty.
      setEnded(page.length === 0);
      setOlder([...page, ...all]);
    });
  const isMore = !ended && first?.at && !FIRST.test(first.prev);
  return { all: data && all, error, reload, more: isMore ? more : null };
}

export function AuditPage() {
  const search = parameters.value.get('search') ?? '';
  const who = parameters.value.get('who') ?? '';
  const sinceText = parameters.value.get('since') ?? '';
  const settled = useSettled(sinceText);
  const since = useMemo(() => typedTime(settled, now.peek()), [settled]);
  const from = since === null ? undefined : toRfc3339(since);
  const { all, error, reload, more } = useEntries(useSettled(who), from);
  const words = search.toLowerCase();
  const shown = all?.filter((entry) =>
    `${entry.who} ${entry.address} ${requestText(entry)} ${JSON.stringify(entry.asked ?? '')}`
      .toLowerCase()
      .includes(words),
  );
  const options = [...(sinceText ? ['--since', sinceText] : []), ...(who ? ['--who', who] : [])];
  return (
    <>
      <PageHead title="Audit" />
      <Card>
        <div class="filters">
          <SearchField
            label="Search the audit"
            value={search}
            onInput={(value) => setParameters({ search: value || null })}
          />
          <TextField label="Who" value={who} onInput={(value) => setParameters({ who: value || null })} />
          <TextField
            label="Since"
            value={sinceText}
            onInput={(value) => setParameters({ since: value || null })}
            placeholder="-1d"
            problem={
              sinceText !== '' && settled === sinceText && since === null ? 'Such as 10:41 or -1d' : null
            }
          />
        </div>
        {error && !all && <Failure what="The audit could not be read." error={error} retry={reload} />}
        {!all && !error && <Skeleton lines={8} />}
        {shown?.length === 0 && (
          <Empty title="No entry matches" command={hindcast('audit', ...options)}>
            The server writes an entry for each request that changes something, or is refused.
          </Empty>
        )}
        {shown && shown.length > 0 && (
          <Table label="Audit" columns={COLUMNS} rows={shown} keyOf={keyOf} sortBy="Time" descending />
        )}
        {more && (
          <div class="more">
            <Button onClick={more}>Earlier entries</Button>
          </div>
        )}
      </Card>
    </>
  );
}
