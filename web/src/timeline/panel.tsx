/**
 * The panel of a moment: its time, what changed since, what is near, and what a person can do with
 * it.
 */

import type { VNode } from 'preact';
import { useEffect, useMemo } from 'preact/hooks';
import type { Volume } from '../api/schema';
import { may } from '../api/session';
import { now } from '../lib/clock';
import { bytes, count, plural } from '../lib/format';
import { clockTime, dayOf, duration, relative, utcTime, zoneOffset } from '../lib/time';
import { Button } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import type { IconName } from '../parts/icon';
import { CompareDialog } from './actions/compare';
import { FilesDialog } from './actions/files';
import { FindDialog } from './actions/find';
import { GoBackDialog } from './actions/go-back';
import { KeepDialog } from './actions/keep';
import { MarkDialog } from './actions/mark';
import { OpenDialog } from './actions/open';
import { RecoverDialog } from './actions/recover';
import { exactDigits } from './axis';
import { toggleSecond } from './keys';
import type { Kind } from './points';
import { followRest, type Rested } from './rested';
import { snapText } from './snap';
import type { TimelineState } from './state';
import { changedSince, sizeAt } from './sums';
import { nearOf } from './words';

export function Panel({ state, volume }: { state: TimelineState; volume: Volume }) {
  const { rested, dispose } = useMemo(() => followRest(state), [state]);
  useEffect(() => dispose, [dispose]);
  const moment = state.moment.value;
  return (
    <aside class="card moment-panel" aria-label="Moment">
      <MomentTime state={state} />
      <SnapLine state={state} />
      {moment === null ? (
        <Present state={state} />
      ) : (
        <Changes state={state} moment={moment} volume={volume} rested={rested.value} />
      )}
      {moment !== null && <Near state={state} moment={moment} />}
      <Actions state={state} volume={volume} moment={moment} />
    </aside>
  );
}

function MomentTime({ state }: { state: TimelineState }) {
  const time = state.moment.value ?? now.value;
  const digits = state.moment.value === null ? 0 : exactDigits(state.span.value);
  const retain = state.whole.value?.retain ?? null;
  const left = retain === null ? null : time + retain - now.value;
  return (
    <div class="moment-time">
      <strong>{clockTime(time, digits)}</strong>
      <span>
        {dayOf(time)} {new Date(time).getFullYear()}, {zoneOffset(time)}
      </span>
      <span class="soft small">{utcTime(time, digits)}</span>
      <span class="soft small">
        {state.moment.value === null ? 'The present' : relative(time, now.value)}
        {state.moment.value !== null && left !== null && `, expires in ${duration(Math.max(left, 0))}`}
      </span>
    </div>
  );
}

/** Whether the line is at a flush, while only consistent points are wanted. */
function SnapLine({ state }: { state: TimelineState }) {
  const snap = state.snap.value;
  const text = snapText(snap);
  if (!text) return null;
  const at = snap === 'flush' || snap === 'looking';
  return (
    <div class="panel-part">
      <p class={at ? 'soft small' : 'warning-text'}>{text}.</p>
    </div>
  );
}

function Present({ state }: { state: TimelineState }) {
  const begins = state.whole.value?.begins;
  return (
    <div class="panel-part">
      <p class="soft">
        Drag the line on the timeline to a moment, or use the arrow keys.
        {begins !== null &&
          begins !== undefined &&
          ` The history reaches back ${duration(now.value - begins)}.`}
      </p>
    </div>
  );
}

interface ChangesProps {
  state: TimelineState;
  moment: number;
  volume: Volume;
  rested: Rested | null;
}

function Changes({ state, moment, volume, rested }: ChangesProps) {
  const exact = rested?.moment === moment ? rested : null;
  const sum = exact?.sum ?? changedSince(state.whole.value, state.detail.value, moment, now.value);
  const size = sizeAt(state.whole.value, moment) ?? volume.size;
  return (
    <div class="panel-part">
      <dl class="pairs">
        <dt>Changed since</dt>
        <dd>
          {sum ? bytes(sum.bytes) : '–'}{' '}
          <span class="soft">{sum && `in ${plural(Math.round(sum.records), 'write')}`}</span>
        </dd>
        <dt>Size</dt>
        <dd>
          {bytes(size)} {size !== volume.size && <span class="soft">then, now {bytes(volume.size)}</span>}
        </dd>
        <dt>Position</dt>
        <dd>
          {exact?.lsn ? (
            <span data-tip="Opening the moment gives its exact position.">after LSN {count(exact.lsn)}</span>
          ) : (
            '–'
          )}
        </dd>
      </dl>
      <Where regions={exact?.regions ?? null} size={volume.size} />
    </div>
  );
}

const STRIP_WIDTH = 256;

/** Where in the volume the changes since the moment are. */
function Where({ regions, size }: { regions: number[] | null; size: number }) {
  const highest = Math.max(1, ...(regions ?? []));
  const each = STRIP_WIDTH / (regions?.length || 1);
  const touched = regions?.filter((sum) => sum > 0).length ?? 0;
  const label = regions
    ? `${touched} of ${regions.length} parts of the volume changed`
    : 'The parts of the volume that changed';
  return (
    <div class="where">
      <svg viewBox={`0 0 ${STRIP_WIDTH} 28`} preserveAspectRatio="none" role="img" aria-label={label}>
        <rect class="ground" width={STRIP_WIDTH} height="28" />
        {regions?.map((sum, index) => {
          const height = sum > 0 ? Math.max(2, Math.sqrt(sum / highest) * 28) : 0;
          return (
            <rect
              key={index}
              class="part"
              x={index * each}
              y={28 - height}
              width={Math.max(each - 0.6, 0.6)}
              height={height}
            />
          );
        })}
      </svg>
      <div class="line small soft">
        <span>0</span>
        <span class="push">where it changed</span>
        <span class="push">{bytes(size)}</span>
      </div>
    </div>
  );
}

const ROWS: [string, Kind][] = [
  ['Snapshot', 'snapshots'],
  ['Mark', 'marks'],
  ['Flush', 'flushes'],
];

function Near({ state, moment }: { state: TimelineState; moment: number }) {
  return (
    <div class="panel-part near">
      {ROWS.map(([name, kind]) => (
        <div key={kind} class="near-row">
          <span class="soft">{name}</span>
          <Jump state={state} moment={moment} kind={kind} name={name} forwards={false} />
          <Jump state={state} moment={moment} kind={kind} name={name} forwards />
        </div>
      ))}
    </div>
  );
}

interface JumpProps {
  state: TimelineState;
  moment: number;
  kind: Kind;
  name: string;
  forwards: boolean;
}

function Jump({ state, moment, kind, name, forwards }: JumpProps) {
  const point = nearOf(state, kind, moment, forwards);
  if (point === undefined) {
    const searched = state.near.value?.moment === moment;
    return <span class="soft small">{searched ? 'not known' : '…'}</span>;
  }
  if (!point) return <span class="soft small">none {forwards ? 'after' : 'before'}</span>;
  const distance = point.time - moment;
  const side =
    Math.abs(distance) < 0.5 ? 'here' : `${duration(distance)} ${distance < 0 ? 'before' : 'after'}`;
  const go = () => {
    if (kind === 'flushes' && state.consistent.peek()) state.moveToFlush(point);
    else state.moveTo(point.time, forwards ? 'forth' : 'back');
  };
  return (
    <button type="button" class="jump" data-tip={point.name || undefined} onClick={go}>
      <span class="hidden-text">Go to the {name.toLowerCase()} </span>
      {point.name && <span class="name">{point.name}</span>}
      <span class="soft small">{side}</span>
    </button>
  );
}

interface ActionsProps {
  state: TimelineState;
  volume: Volume;
  moment: number | null;
}

function Actions({ state, volume, moment }: ActionsProps) {
  const time = moment ?? 0;
  const past = moment !== null;
  const show = (name: string, icon: IconName, dialog: () => VNode, kind?: 'main') => (
    <Button icon={icon} kind={kind} disabled={!past} onClick={() => openDialog(dialog())}>
      {name}
    </Button>
  );
  return (
    <div class="panel-part moment-actions">
      {may('operator') && show('Open', 'eye', () => <OpenDialog state={state} moment={time} />, 'main')}
      {may('operator') && show('Files', 'files', () => <FilesDialog state={state} moment={time} />)}
      {may('operator') &&
        show('Recover to a new volume', 'branch', () => <RecoverDialog state={state} moment={time} />)}
      {may('admin') &&
        show('Go back here', 'back', () => <GoBackDialog state={state} moment={time} volume={volume} />)}
      {may('operator') &&
        show('Keep as snapshot', 'camera', () => <KeepDialog state={state} moment={time} />)}
      {may('operator') && (
        <Button
          icon="flag"
          tip="Mark the present (M)"
          onClick={() => openDialog(<MarkDialog state={state} />)}
        >
          Mark now
        </Button>
      )}
      <CompareButton state={state} time={time} past={past} />
      {may('operator') && show('Find the moment', 'search', () => <FindDialog state={state} moment={time} />)}
    </div>
  );
}

function CompareButton({ state, time, past }: { state: TimelineState; time: number; past: boolean }) {
  const second = state.second.value;
  if (second === null) {
    return (
      <Button
        icon="compare"
        disabled={!past}
        tip="A second handle (B): what differs between the two?"
        onClick={() => toggleSecond(state)}
      >
        Compare
      </Button>
    );
  }
  return (
    <div class="line compare-line">
      <Button
        icon="compare"
        onClick={() =>
          openDialog(<CompareDialog state={state} one={past ? time : now.value} other={second} />)
        }
      >
        Compare the two
      </Button>
      <Button
        icon="close"
        kind="quiet"
        label="Remove the second handle (B)"
        onClick={() => toggleSecond(state)}
      />
    </div>
  );
}
