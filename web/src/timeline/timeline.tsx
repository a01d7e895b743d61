/** The timeline of a volume: overview, window and panel. */

import { useEffect, useMemo } from 'preact/hooks';
import { events } from '../api/events';
import type { Volume } from '../api/schema';
import { may } from '../api/session';
import { bytes } from '../lib/format';
import { DAY, duration, HOUR, MINUTE } from '../lib/time';
import { Button, Empty, Failure } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { parameters } from '../router';
import { MarkDialog } from './actions/mark';
import { TypeTimeDialog } from './actions/type-time';
import { highestRate, partsOf } from './bars';
import { onPageKey } from './keys';
import { Overview } from './overview';
import { Panel } from './panel';
import { lengthOf } from './scale';
import { pointed, Stage } from './stage';
import { TimelineState } from './state';

const PRESETS: [string, number][] = [
  ['5 min', 5 * MINUTE],
  ['1 h', HOUR],
  ['6 h', 6 * HOUR],
  ['1 d', DAY],
  ['7 d', 7 * DAY],
];

export function TimelineTab({ volume }: { volume: Volume }) {
  if (!volume.cdp) {
    return (
      <Empty title="This volume keeps no history" command={`hindcast volume set ${volume.name} --cdp parity`}>
        With a history, the volume can return to any second of its past. Switch it on in Settings, or by this
        command.
      </Empty>
    );
  }
  return <VolumeTimeline key={volume.uuid} volume={volume} />;
}

function VolumeTimeline({ volume }: { volume: Volume }) {
  const state = useMemo(() => new TimelineState(volume.name, parameters.peek()), [volume.uuid]);
  useEffect(
    () => () => {
      state.stopAddress();
      state.dispose();
    },
    [state],
  );
  const actions = {
    typeTime: () => openDialog(<TypeTimeDialog state={state} />),
    mark: () => may('operator') && openDialog(<MarkDialog state={state} />),
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (onPageKey(event, state, actions)) event.preventDefault();
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, [state]);
  const newest = events.value.find((event) => event.subject === volume.name)?.id;
  useEffect(() => {
    if (newest !== undefined) state.loader.refresh();
  }, [newest]);
  return (
    <div class="timeline-page">
      <section class="card timeline" aria-label="Timeline">
        {state.error.value && (
          <Failure
            what="The timeline could not be read."
            error={state.error.value}
            retry={() => state.loader.refresh()}
          />
        )}
        <Overview state={state} />
        <Controls state={state} onTypeTime={actions.typeTime} />
        <Stage state={state} />
        <Legend state={state} />
      </section>
      <Panel state={state} volume={volume} />
    </div>
  );
}

function Controls({ state, onTypeTime }: { state: TimelineState; onTypeTime: () => void }) {
  const length = lengthOf(state.span.value);
  const whole = () => state.glide({ ...state.limits() });
  return (
    <div class="timeline-controls">
      <fieldset class="line plain" aria-label="Window">
        {PRESETS.map(([name, wanted]) => (
          <Button
            key={name}
            kind="quiet"
            pressed={state.live.value && Math.abs(length - wanted) < wanted * 0.02}
            onClick={() => state.glide({ from: state.limits().to - wanted, to: state.limits().to })}
          >
            {name}
          </Button>
        ))}
        <Button kind="quiet" pressed={state.isWhole()} onClick={whole}>
          All
        </Button>
      </fieldset>
      <div class="line push">
        <Button icon="clock" onClick={onTypeTime} tip="Type a time (T)">
          Go to a time
        </Button>
        <Button
          pressed={state.consistent.value}
          tip="The playhead stops only at flushes, where clients had their data on stable storage."
          onClick={() => state.setConsistent(!state.consistent.value)}
        >
          Only consistent points
        </Button>
        <Button
          pressed={state.heat.value}
          tip="A map of time and place: which parts of the volume were written, and when."
          onClick={() => {
            state.heat.value = !state.heat.value;
          }}
        >
          Map
        </Button>
        <Button icon="plus" label="Zoom in (+)" onClick={() => state.zoomByKey(0.5)} />
        <Button label="Zoom out (−)" tip="Zoom out (−)" icon="minus" onClick={() => state.zoomByKey(2)} />
      </div>
    </div>
  );
}

function Legend({ state }: { state: TimelineState }) {
  const detail = state.detail.value;
  const highest = detail ? highestRate(partsOf(state.span.value, detail, null)) * detail.bucket : 0;
  const scale = detail ? `A bar is ${duration(detail.bucket)}. The highest is ${bytes(highest)}.` : '';
  return (
    <div class="timeline-legend small soft">
      <span class="pointed">{pointed.value || scale}</span>
      <span class="line push">
        <span class="line nowrap">
          <span>compresses well</span>
          <span class="ramp" />
          <span>does not compress</span>
        </span>
        <span
          class="badge"
          // biome-ignore lint/a11y/noNoninteractiveTabindex: the focus shows the explanation, as pointing does
          tabIndex={0}
          data-tip="Orange means that the data suddenly does not compress, as encrypted or packed data does not. This is a hint, not a verdict."
        >
          a hint, not a verdict
        </span>
      </span>
    </div>
  );
}
