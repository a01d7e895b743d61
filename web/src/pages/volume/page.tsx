/** The page of a volume: its timeline, snapshots, activity, access and settings. */

import type { ComponentChildren } from 'preact';
import { apiPath } from '../../api/client';
import { live } from '../../api/live';
import { useResource } from '../../api/resource';
import type { Volume } from '../../api/schema';
import { splitAddress } from '../../lib/forest';
import { byteRate, bytes, plural } from '../../lib/format';
import { Badge, Failure, Labels, PageHead, Skeleton } from '../../parts/basics';
import { volumePath } from '../../router';
import { TimelineTab } from '../../timeline/timeline';
import { clientsOf } from '../clients';
import { AccessTab } from './access';
import { ActivityTab } from './activity';
import { SettingsTab } from './settings';
import { SnapshotsTab } from './snapshots';

const TABS: [string, string, (volume: Volume) => ComponentChildren][] = [
  ['', 'Timeline', (volume) => <TimelineTab volume={volume} />],
  ['snapshots', 'Snapshots', (volume) => <SnapshotsTab volume={volume} />],
  ['activity', 'Activity', (volume) => <ActivityTab volume={volume} />],
  ['access', 'Access', (volume) => <AccessTab volume={volume} />],
  ['settings', 'Settings', (volume) => <SettingsTab volume={volume} />],
];

export function VolumePage({ name, tab }: { name: string; tab: string }) {
  const { data: volume, error, reload } = useResource<Volume>(apiPath`/volumes/${name}`);
  const show = TABS.find(([path]) => path === tab)?.[2];
  return (
    <>
      <PageHead title={name} badge={volume && <Facts volume={volume} />}>
        <Labels of={volume?.labels} />
      </PageHead>
      <nav class="tabs" aria-label={`Pages of ${name}`}>
        {TABS.map(([path, title]) => (
          <a key={path} href={volumePath(name, path)} aria-current={path === tab ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      {error && !volume && <Failure what="The volume could not be read." error={error} retry={reload} />}
      {!volume && !error && <Skeleton />}
      {volume && show?.(volume)}
    </>
  );
}

function Facts({ volume }: { volume: Volume }) {
  const rates = live.value?.volumes[volume.name];
  const moved = rates ? rates.read_bytes + rates.write_bytes : 0;
  return (
    <>
      <Badge>{bytes(volume.size)}</Badge>
      {volume.read_only && <Badge tone="b">read-only</Badge>}
      {volume.importing && <Badge tone="b">importing</Badge>}
      {volume.origin && <Badge>{originText(volume.name, volume.origin)}</Badge>}
      <Badge tone={clientsOf(volume) > 0 ? 'a' : undefined}>{plural(clientsOf(volume), 'client')}</Badge>
      {moved > 0 && <span class="soft small">{byteRate(moved)}</span>}
    </>
  );
}

/** What the content of a volume depends on: an image, or a moment of a volume. */
export function originText(name: string, origin: string): string {
  const [volume, moment] = splitAddress(origin);
  if (volume === name) return `rolled back to ${moment}`;
  return origin.startsWith('/') ? `over ${origin}` : `from ${origin}`;
}
