/** The pool: its space, physical volumes, journal, cache and check. */

import { useState } from 'preact/hooks';
import { apiPath, patch, post, remove } from '../api/client';
import { reload, reloadAll, useResource } from '../api/resource';
import type { Member, Pool, Pv, PvLayout, Scrub } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { dailyRate, fullDay } from '../lib/filling';
import { byteRate, bytes, count, parseSize, percent, sizeArgument } from '../lib/format';
import { duration, SECOND } from '../lib/time';
import { Badge, Button, Card, Failure, Meter, PageHead, Pairs, Skeleton, Time } from '../parts/basics';
import { FormDialog, openDialog } from '../parts/dialog';
import { TextField } from '../parts/fields';
import { attempt } from '../parts/notices';
import { ConfirmDialog, RemoveDialog } from '../parts/remove-dialog';
import { Problems } from './problems';

export function PoolPage() {
  const { data: pool, error, reload: again } = useResource<Pool>('/pool', 10);
  const problems = pool?.health.problems ?? [];
  return (
    <>
      <PageHead title="Pool">
        {may('admin') && (
          <Button icon="plus" kind="main" onClick={() => openDialog(<AddPvDialog />)}>
            Add a physical volume
          </Button>
        )}
      </PageHead>
      {problems.length > 0 && <Problems problems={problems} />}
      {error && !pool && <Failure what="The pool could not be read." error={error} retry={again} />}
      {!pool && !error && <Skeleton />}
      {pool && <Space pool={pool} />}
      <PhysicalVolumes />
      {pool && (
        <div class="grid-2">
          <JournalCard pool={pool} />
          <CacheCard pool={pool} />
          <ScrubCard />
        </div>
      )}
    </>
  );
}

function Space({ pool }: { pool: Pool }) {
  return (
    <Card title="Space">
      <div class="inside stack">
        <Meter
          part={pool.used}
          whole={pool.capacity}
          label={`${percent(pool.used, pool.capacity)} is used`}
        />
        <Pairs
          of={[
            ['Used', `${bytes(pool.used)}, ${percent(pool.used, pool.capacity)} of ${bytes(pool.capacity)}`],
            ['Free', bytes(pool.available)],
            ['Taken', dailyRate(pool.filling)],
            ['Full', fullDay(pool.filling)],
            ['Provisioned', `${bytes(pool.provisioned)} in ${count(pool.volumes)} volumes`],
            ['Reserved', bytes(pool.reserved)],
          ]}
        />
      </div>
    </Card>
  );
}

function PhysicalVolumes() {
  const { data, error, reload: again } = useResource<Pv[]>('/pool/pvs', 10);
  return (
    <Card title="Physical volumes">
      {error && !data && (
        <Failure what="The physical volumes could not be read." error={error} retry={again} />
      )}
      {!data && !error && <Skeleton />}
      <ul class="pv-list">
        {data?.map((pv) => (
          <li key={pv.uuid} class="pv">
            <div class="line">
              <strong>{pv.path}</strong>
              <span class="soft">number {pv.id}</span>
              {pv.dedicated && <Badge tone="b">only for volumes on it</Badge>}
              {pv.weight !== undefined && pv.weight !== 100 && <Badge tone="b">weight {pv.weight} %</Badge>}
              {pv.draining && <Badge tone="b">{pv.used > 0 ? 'draining' : 'empty'}</Badge>}
              {pv.failure && <Badge tone="full">failed: {pv.failure}</Badge>}
              <span class="push line">
                <span class="soft">
                  {bytes(pv.used)} of {bytes(pv.size)}
                </span>
                {may('admin') && <PvActions pv={pv} />}
              </span>
            </div>
            <Meter
              part={pv.used}
              whole={pv.size}
              label={`${percent(pv.used, pv.size)} of ${pv.path} is used`}
            />
            {pv.layout && <Members layout={pv.layout} />}
          </li>
        ))}
      </ul>
    </Card>
  );
}

/** The disks of a mirror or of a RAID-5. */
/** How far the rebuild of a member has come, as the end of a sentence. */
function rebuildProgress({ rebuilt, left, seconds_left }: Member): string {
  if (typeof rebuilt !== 'number' || typeof left !== 'number') return '';
  const time = typeof seconds_left === 'number' ? `, about ${duration(seconds_left * SECOND)}` : '';
  return `, ${percent(rebuilt, rebuilt + left)} done, ${bytes(left)} left${time}`;
}

function Members({ layout }: { layout: PvLayout }) {
  const survives =
    layout.survives === 0
      ? 'no further disk may fail'
      : `${count(layout.survives)} more ${layout.survives === 1 ? 'disk' : 'disks'} may fail`;
  const reserve =
    layout.reserve === 1 ? 'space of one disk is' : `space of ${count(layout.reserve ?? 0)} disks is`;
  const shape =
    layout.kind === 'mirror'
      ? `${count(layout.copies ?? 0)} copies`
      : `rows of ${count((layout.columns ?? 1) - 1)} and a parity`;
  return (
    <ul class="members" aria-label={`Disks of ${layout.name}`}>
      <li class="soft">
        {shape} on {count(layout.members.length)} disks; {survives}
      </li>
      {(layout.reserve ?? 0) > 0 && (
        <li class="soft">{reserve} kept free for what the others have to take over</li>
      )}
      {layout.takes_over && <li class="soft">the other disks take over what a disk had that is out</li>}
      {layout.growth && (
        <li class="soft">
          grows to {bytes(layout.growth.size)}; {bytes(layout.growth.moves)} move first
        </li>
      )}
      {layout.members.map((member) => (
        <li key={member.path} class="line">
          <span>{member.path}</span>
          {member.state === 'out' && <Badge tone="full">out</Badge>}
          {member.onto && (
            <Badge tone="b">
              rebuilt onto {member.onto}
              {rebuildProgress(member)}
            </Badge>
          )}
          {member.state === 'out' && (
            <span class="soft">
              {member.reason}
              {member.changed !== undefined &&
                member.changed !== null &&
                `; ${bytes(member.changed)} changed since`}
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

function PvActions({ pv }: { pv: Pv }) {
  const stop = () =>
    attempt('Stopping the drain', async () => {
      await patch(apiPath`/pool/pvs/${pv.id}`, { draining: false });
      await reload('/pool/pvs');
    });
  if (pv.draining && pv.used === 0)
    return <Button onClick={() => openDialog(<RemovePvDialog pv={pv} />)}>Remove</Button>;
  if (pv.draining) return <Button onClick={stop}>Stop draining</Button>;
  return <Button onClick={() => openDialog(<DrainDialog pv={pv} />)}>Drain</Button>;
}

function DrainDialog({ pv: { id, path, used } }: { pv: Pv }) {
  return (
    <ConfirmDialog
      title={`Drain ${path}`}
      submit="Drain"
      run={() => patch(apiPath`/pool/pvs/${id}`, { draining: true })}
      changes={['/pool/pvs', '/tasks']}
      command={hindcast('pool', 'drain', path)}
      done={`${path} is being drained.`}
    >
      <p>
        The pool moves {bytes(used)} to the other physical volumes, while clients go on. It writes no new data
        to {path}. You can stop this at any time: what was moved stays moved.
      </p>
      <p>The other physical volumes need room for it. Once {path} is empty, you can remove it.</p>
    </ConfirmDialog>
  );
}

function RemovePvDialog({ pv: { id, path } }: { pv: Pv }) {
  return (
    <RemoveDialog
      verb="Remove"
      object={path}
      path={apiPath`/pool/pvs/${id}`}
      changes={['/pool/pvs', '/pool']}
      command={hindcast('pool', 'remove', path)}
      done={`${path} was removed from the pool.`}
      confirm={path}
    >
      <p>
        {path} has no data of the pool any more. The pool forgets it, and becomes smaller by its size. You can
        then take the disk out.
      </p>
    </RemoveDialog>
  );
}

function JournalCard({ pool: { journal } }: { pool: Pool }) {
  return (
    <Card title="Journal">
      <div class="inside stack">
        <Meter
          part={journal.used}
          whole={journal.capacity}
          label={`${percent(journal.used, journal.capacity)} of the journal is used`}
        />
        <Pairs
          of={[
            ['Used', `${bytes(journal.used)} of ${bytes(journal.capacity)}`],
            ['Not destaged', `${count(journal.sequenced_lsn - journal.destaged_lsn)} positions`],
            ['Waits for room', count(journal.backpressure_waits)],
          ]}
        />
      </div>
    </Card>
  );
}

function CacheCard({ pool: { map_cache, index } }: { pool: Pool }) {
  return (
    <Card title="Map and cache">
      <div class="inside">
        <Pairs
          of={[
            ['Cache', `${bytes(map_cache.used)} of ${bytes(map_cache.size)}`],
            [
              'Hits',
              map_cache.hit_rate === null || map_cache.hit_rate === undefined
                ? '–'
                : percent(map_cache.hit_rate, 1),
            ],
            ['Catalog', bytes(index.catalog_bytes)],
            ['Map', `${count(index.map_pages)} pages, ${count(index.versions)} versions`],
          ]}
        />
      </div>
    </Card>
  );
}

function ScrubCard() {
  const { data: scrub, reload: again } = useResource<Scrub>('/pool/scrub', 10);
  const run = (what: string, action: () => Promise<unknown>) =>
    attempt(what, async () => {
      await action();
      await again();
    });
  const actions =
    may('operator') &&
    scrub &&
    (scrub.running ? (
      <Button onClick={() => run('Stopping the check', () => remove('/pool/scrub'))}>Stop</Button>
    ) : (
      <Button onClick={() => run('Starting the check', () => post('/pool/scrub', {}))}>Check now</Button>
    ));
  return (
    <Card title="Check of all data" actions={actions}>
      {!scrub ? (
        <Skeleton lines={3} />
      ) : (
        <div class="inside stack">
          {scrub.running && (
            <Meter
              part={scrub.verified}
              whole={scrub.total}
              label={`${percent(scrub.verified, scrub.total)} is checked`}
            />
          )}
          <Pairs
            of={[
              ['State', scrub.running ? `${percent(scrub.verified, scrub.total)} checked` : 'not running'],
              ['Rate', scrub.rate > 0 ? byteRate(scrub.rate) : 'no limit'],
              ['Last pass', scrub.finished ? <Time key="finished" at={scrub.finished} /> : 'none'],
              ['Damaged', count(scrub.damaged)],
              ['Repaired', count(scrub.repaired)],
            ]}
          />
        </div>
      )}
    </Card>
  );
}

function AddPvDialog() {
  const [path, setPath] = useState('');
  const [size, setSize] = useState('');
  const bytesWanted = size === '' ? undefined : parseSize(size);
  const submit = async () => {
    await post('/pool/pvs', { path, size: bytesWanted });
    reloadAll();
    return undefined;
  };
  return (
    <FormDialog
      title="Add a physical volume"
      what="Adding the physical volume"
      command={hindcast(
        'pool',
        'add',
        path || 'PATH',
        ...(bytesWanted ? ['--size', sizeArgument(bytesWanted)] : []),
      )}
      submit="Add"
      disabled={path === '' || bytesWanted === null}
      onSubmit={submit}
    >
      <TextField
        label="Path"
        value={path}
        onInput={setPath}
        hint="A block device such as /dev/sdd, or a file on the server's machine"
        first
      />
      <TextField
        label="Size"
        value={size}
        onInput={setSize}
        hint="For a new file only. Empty: the device's own size"
      />
    </FormDialog>
  );
}
