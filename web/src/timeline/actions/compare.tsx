import { useEffect, useState } from 'preact/hooks';
import { apiPath, errorText, get, query } from '../../api/client';
import type { Changed } from '../../api/schema';
import { may } from '../../api/session';
import { hindcast } from '../../lib/command';
import { bytes, plural } from '../../lib/format';
import { toRfc3339 } from '../../lib/time';
import { Failure, Skeleton } from '../../parts/basics';
import { Dialog, DoneFooter, LabelledCommand } from '../../parts/dialog';
import type { TimelineState } from '../state';
import { CompareFiles } from './file-differences';
import { MomentLine } from './moment-line';

/** Ranges that the dialog lists. The command lists all. */
const LISTED = 100;

/** What differs between two moments. It opens both, so it runs only when a person asks. */
export function CompareDialog({ state, one, other }: { state: TimelineState; one: number; other: number }) {
  const [from, to] = one < other ? [one, other] : [other, one];
  const [changed, setChanged] = useState<Changed | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    const parameters = query({ from: toRfc3339(from), to: toRfc3339(to) });
    get<Changed>(apiPath`/volumes/${state.volume}/changed` + parameters)
      .then(setChanged)
      .catch((reason) => setError(errorText(reason)));
  }, [from, to]);
  return (
    <Dialog title="What differs between the two moments" wide>
      <div class="columns">
        <MomentLine state={state} moment={from} />
        <MomentLine state={state} moment={to} />
      </div>
      {error && <Failure what="The comparison failed." error={error} />}
      {!changed && !error && <Skeleton lines={5} />}
      {changed && <Result changed={changed} />}
      {changed && may('operator') && <CompareFiles volume={state.volume} from={from} to={to} />}
      <LabelledCommand
        label="As a command"
        text={hindcast('diff', `${state.volume}@${toRfc3339(from)}`, `${state.volume}@${toRfc3339(to)}`)}
      />
      <DoneFooter />
    </Dialog>
  );
}

function Result({ changed }: { changed: Changed }) {
  const highest = Math.max(1, ...changed.parts.map(({ bytes: part }) => part));
  const width = 100 / Math.max(changed.parts.length, 1);
  const rest = changed.ranges.length - LISTED;
  return (
    <div class="stack">
      <p>
        <strong>
          {changed.partial && 'at least '}
          {bytes(changed.bytes)}
        </strong>{' '}
        in {plural(changed.ranges.length, 'range')} differ.
      </p>
      <svg
        class="parts"
        viewBox="0 0 100 20"
        preserveAspectRatio="none"
        role="img"
        aria-label="Bytes that differ by part of the volume"
      >
        {changed.parts.map(({ offset, bytes: part }, index) => (
          <rect
            key={offset}
            class="part"
            x={index * width}
            y={20 - 20 * Math.sqrt(part / highest)}
            width={width * 0.9}
            height={20 * Math.sqrt(part / highest)}
          />
        ))}
      </svg>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls the list */}
      <section class="ranges" aria-label="Ranges" tabIndex={0}>
        <table aria-label="Ranges that differ">
          <thead>
            <tr>
              <th scope="col" class="number">
                Offset
              </th>
              <th scope="col" class="number">
                Length
              </th>
            </tr>
          </thead>
          <tbody>
            {changed.ranges.slice(0, LISTED).map(({ offset, length }) => (
              <tr key={offset}>
                <td class="number">{bytes(offset)}</td>
                <td class="number">{bytes(length)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {rest > 0 && <p class="soft">{plural(rest, 'more range')}: the command lists all.</p>}
    </div>
  );
}
