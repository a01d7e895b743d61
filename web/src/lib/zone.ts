/**
 * Time zones as the browser's `Intl` knows them: what the clock on the wall shows at a time, and
 * when it changes. Times are milliseconds since 1970 in UTC. What a clock shows is seconds since
 * 1970 too, as if the zone were UTC.
 */

import { DAY, SECOND } from './time';

/** A change of a zone's offset, and the offset from then on, in seconds. */
interface Change {
  at: number;
  offset: number;
}

/** The changes of one year of a zone, and the offset just before the year. */
interface Year {
  first: number;
  changes: Change[];
}

export class Zone {
  private readonly parts: Intl.DateTimeFormat;
  private readonly years = new Map<number, Year>();

  /** Throws a `RangeError` if the browser does not know the zone. */
  constructor(readonly name: string) {
    this.parts = new Intl.DateTimeFormat('en-US', {
      timeZone: name,
      hourCycle: 'h23',
      year: 'numeric',
      month: 'numeric',
      day: 'numeric',
      hour: 'numeric',
      minute: 'numeric',
      second: 'numeric',
    });
  }

  /** Seconds by which the clock of the zone is ahead of UTC. */
  offset(time: number): number {
    const { first, changes } = this.year(new Date(time).getUTCFullYear());
    return changes.findLast(({ at }) => at <= time)?.offset ?? first;
  }

  /** What the clock of the zone shows. */
  shown(time: number): number {
    return Math.floor(time / SECOND) + this.offset(time);
  }

  /** The first change of the offset after a time, if there is one before `until`. */
  changeAfter(time: number, until: number): Change | undefined {
    const last = new Date(until).getUTCFullYear();
    for (let year = new Date(time).getUTCFullYear(); year <= last; year += 1) {
      const found = this.year(year).changes.find(({ at }) => at > time);
      if (found) return found.at <= until ? found : undefined;
    }
    return undefined;
  }

  /**
   * The time at which the clock shows `shown`: the first one if it shows that twice, and the end of
   * the gap if it never does.
   */
  timeOf(shown: number): number {
    const near = shown * SECOND;
    // No zone is a day or more from UTC, so the offset in force is that of one of the two days.
    const before = this.offset(near - DAY);
    const earliest = (shown - before) * SECOND;
    if (this.offset(earliest) === before) return earliest;
    const change = this.changeAfter(near - DAY, near + DAY);
    if (!change) return earliest;
    return Math.max((shown - change.offset) * SECOND, change.at);
  }

  private year(number: number): Year {
    let found = this.years.get(number);
    if (!found) {
      found = this.readYear(Date.UTC(number, 0, 1), Date.UTC(number + 1, 0, 1));
      this.years.set(number, found);
    }
    return found;
  }

  /**
   * Finds the changes of a year. No zone changes its offset twice in a day. The days begin a second
   * early, so that a change at the year's first instant is one of its changes.
   */
  private readYear(from: number, to: number): Year {
    const first = this.read(from - SECOND);
    const changes: Change[] = [];
    let offset = first;
    for (let day = from - SECOND; day < to - SECOND; day += DAY) {
      const next = this.read(day + DAY);
      if (next !== offset) changes.push({ at: this.narrow(day, day + DAY, offset), offset: next });
      offset = next;
    }
    return { first, changes };
  }

  /** The time after `from`, and not after `to`, at which the zone leaves an offset. */
  private narrow(from: number, to: number, offset: number): number {
    let [low, high] = [from / SECOND, to / SECOND];
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.read(middle * SECOND) === offset) low = middle;
      else high = middle;
    }
    return high * SECOND;
  }

  /** The offset by `Intl`, which takes much longer than a look at the changes. */
  private read(time: number): number {
    const part = Object.fromEntries(this.parts.formatToParts(time).map(({ type, value }) => [type, +value]));
    const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = part;
    return (Date.UTC(year, month - 1, day, hour, minute, second) - time) / SECOND;
  }
}

const zones = new Map<string, Zone>();

/** The zone of a name, whose changes are read once only. Throws if the browser does not know it. */
export function zoneNamed(name: string): Zone {
  let zone = zones.get(name);
  if (!zone) {
    zone = new Zone(name);
    zones.set(name, zone);
  }
  return zone;
}

/** The zone of this browser. */
export function ownZone(): string {
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** The zones that the browser knows by name, for a field's suggestions. */
export function zoneNames(): string[] {
  return ['UTC', ...Intl.supportedValuesOf('timeZone')];
}
