/** The server's events, as they happen, and earlier ones page by page. */

import { useState } from 'preact/hooks';
import { get } from '../api/client';
import { events, following, mergeEvents } from '../api/events';
import type { Event as ServerEvent, Severity } from '../api/schema';
import { retryStreams } from '../api/stream';
import { Badge, Button, Card, Empty, Failure, PageHead, Skeleton, Time } from '../parts/basics';
import { SearchField, SelectField } from '../parts/fields';
import { attempt } from '../parts/notices';
import { parameters, setParameters, volumePath } from '../router';

const PAGE = 200;
/** The number of a server's first event. */
const FIRST = 1;
const TONE = { info: undefined, warning: 'b', critical: 'full' } as const;

export function EventLine({ event }: { event: ServerEvent }) {
  return (
    <li data-id={event.id}>
      <span class="event-time soft small">
        <Time at={event.time} />
      </span>
      <span class="event-text">{event.message}</span>
      {event.severity !== 'info' && <Badge tone={TONE[event.severity]}>{event.severity}</Badge>}
      <span class="push small">
        <Subject event={event} />
      </span>
    </li>
  );
}

type Least = 'all' | Exclude<Severity, 'info'>;

const LEAST: [Least, string][] = [
  ['all', 'All events'],
  ['warning', 'Warnings and critical events'],
  ['critical', 'Critical events'],
];

function passes(event: ServerEvent, text: string, least: Least): boolean {
  if (least === 'critical' && event.severity !== 'critical') return false;
  if (least === 'warning' && event.severity === 'info') return false;
  return `${event.kind} ${event.subject ?? ''} ${event.message}`.toLowerCase().includes(text.toLowerCase());
}

/** Whether new events appear by themselves. */
function LiveBadge() {
  const { live, problem } = following.value;
  if (live) return <Badge tone="a">live</Badge>;
  return problem ? <Badge tone="b">not live</Badge> : <Badge>connecting</Badge>;
}

/** What stands for events that are not there: that they load, or why they can't be read. */
export function EventsState() {
  const { known, problem } = following.value;
  const what = known ? 'New events do not appear by themselves.' : 'The events could not be read.';
  return (
    <>
      {problem && <Failure what={what} error={problem} retry={retryStreams} />}
      {!known && !problem && <Skeleton />}
    </>
  );
}

export function EventsPage() {
  const [older, setOlder] = useState<ServerEvent[]>([]);
  const [ended, setEnded] = useState(false);
  const text = parameters.value.get('search') ?? '';
  const least = (parameters.value.get('least') ?? 'all') as Least;
  const all = mergeEvents(older, events.value, Number.POSITIVE_INFINITY);
  const shown = all.filter((event) => passes(event, text, least));
  const more = () =>
    attempt('Reading earlier events', async () => {
      const page = await get<ServerEvent[]>(`/events?limit=${PAGE}&before=${all.at(-1)?.id ?? 0}`);
      setEnded(page.length === 0);
      setOlder(mergeEvents(all, page, Number.POSITIVE_INFINITY));
    });
  return (
    <>
      <PageHead title="Events" badge={<LiveBadge />} />
      <Card>
        <div class="filters">
          <SearchField
            label="Search events"
            value={text}
            onInput={(value) => setParameters({ search: value || null })}
          />
          <SelectField
            label="Severity"
            value={least}
            options={LEAST}
            onInput={(value) => setParameters({ least: value === 'all' ? null : value })}
          />
        </div>
        <EventsState />
        {following.value.known && shown.length === 0 && (
          <Empty
            title={all.length > 0 ? 'No event matches' : 'No event yet'}
            command="hindcast events --follow"
          >
            An event appears here when a volume, a snapshot, a client or the health changes.
          </Empty>
        )}
        <ul class="list">
          {shown.map((event) => (
            <EventLine key={event.id} event={event} />
          ))}
        </ul>
        {!ended && (all.at(-1)?.id ?? FIRST) > FIRST && (
          <div class="more">
            <Button onClick={more}>Earlier events</Button>
          </div>
        )}
      </Card>
    </>
  );
}

const VOLUME_KINDS = ['volume', 'snapshot', 'mark', 'rollback', 'recovery', 'clone', 'view', 'client'];

/** The subject as a link, where it is a volume. */
function Subject({ event }: { event: ServerEvent }) {
  const { subject, kind } = event;
  if (subject && VOLUME_KINDS.some((prefix) => kind.startsWith(prefix)))
    return <a href={volumePath(subject.split('@')[0] ?? subject)}>{subject}</a>;
  return <span class="soft">{subject}</span>;
}
