/** The page of a volume: its timeline, snapshots, activity, access and settings. */

import { apiPath } from '../../api/client';
import { useResource } from '../../api/resource';
import type { Volume } from '../../api/schema';
import { bytes } from '../../lib/format';
import { Badge, Failure, PageHead, Skeleton } from '../../parts/basics';
import { volumePath } from '../../router';
import { TimelineTab } from '../../timeline/timeline';

export function VolumePage({ name, tab }: { name: string; tab: string }) {
  const { data: volume, error, reload } = useResource<Volume>(apiPath`/volumes/${name}`);
  return (
    <>
      <PageHead title={name} badge={volume && <Badge>{bytes(volume.size)}</Badge>} />
      {error && !volume && <Failure what="The volume could not be read." error={error} retry={reload} />}
      {!volume && !error && <Skeleton />}
      {volume && <TimelineTab volume={volume} />}
    </>
  );
}
