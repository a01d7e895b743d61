import { shownTime } from '../lib/time';
import type { Zone } from '../lib/zone';
import { Time } from '../parts/basics';

/**
 * Runs of a schedule, also by the clock of its zone if that shows another time than the browser's.
 */
export function Runs({ runs, zone }: { runs: number[]; zone: Zone | null }) {
  const differs = (run: number) => zone && zone.offset(run) / 60 !== -new Date(run).getTimezoneOffset();
  return (
    <ul>
      {runs.map((run) => (
        <li key={run}>
          <Time at={run} still={run !== runs[0]} />
          {zone && differs(run) && <span class="soft small"> {shownTime(zone.shown(run), run)} there</span>}
        </li>
      ))}
    </ul>
  );
}
