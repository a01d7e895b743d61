/**
 * Types of routes that the OpenAPI document does not describe yet. `schema.ts` replaces each of
 * them as soon as the document has it.
 */

/** A position in the order of all writes. `time` is RFC 3339 in UTC. */
export interface Position {
  lsn: number;
  time: string;
}

/** Points of one kind. With more than 500 points, `items` is empty and `counts` has one number per bucket. */
export interface Lane<T> {
  count: number;
  items: T[];
  counts?: number[];
  partial?: boolean;
}

/** A volume whose content rests on a moment of the history. */
export interface Dependent {
  kind: 'clone' | 'recovered' | 'view';
  name: string;
  time: string;
}

/** Bytes written by part of the volume: `written[bucket * count + region]`. */
export interface TimelineRegions {
  count: number;
  bytes_each: number;
  written: number[];
}

/** `GET /volumes/{v}/timeline`. Bucket n begins at `from` + n * `bucket_seconds`. */
export interface Timeline {
  volume: string;
  now: string;
  from: string;
  to: string;
  bucket_seconds: number;
  /** The first moment that the server can recover, or null without a history. */
  begins: Position | null;
  records: number[];
  /** Bytes that clients wrote, including `waiting`. */
  written: number[];
  /** Bytes that the history takes for them. */
  stored: number[];
  /** Bytes that are not in the history's log yet; `stored` does not include them. */
  waiting: number[];
  regions?: TimelineRegions;
  /** The server spread some parts evenly. The exact values are there 250 ms later. */
  coarse: boolean;
  spans: { from: Position; to: Position | null }[];
  rollbacks: Position[];
  snapshots: Lane<{ name: string; time: string; lsn: number | null }>;
  marks: Lane<{ name: string; time: string; lsn: number }>;
  anchors: Lane<Position>;
  flushes: Lane<Position>;
  dependents: Dependent[];
  retain_seconds: number | null;
  clock: unknown[];
}

/** Rates per second. Latencies are in seconds, and null without requests. */
export interface Rates {
  reads: number;
  writes: number;
  flushes: number;
  read_bytes: number;
  write_bytes: number;
  in_flight: number;
  read_p50: number | null;
  read_p99: number | null;
  write_p50: number | null;
  write_p99: number | null;
}

/** One event of `GET /live`, once a second. The keys of `volumes` are names. */
export interface Live {
  time: string;
  pool: Rates;
  volumes: Record<string, Rates>;
}

/** `GET /volumes/{v}/activity?of=5m` or `1h`. */
export interface Activity {
  interval_seconds: number;
  points: (Rates & { time: string })[];
}

export type EventSeverity = 'info' | 'warning' | 'critical';

/** An entry of `GET /events`. */
export interface ServerEvent {
  id: number;
  time: string;
  kind: string;
  severity: EventSeverity;
  subject: string | null;
  message: string;
}

/** An entry of `GET /tasks`. */
export interface Task {
  id: string;
  kind: string;
  subject: string;
  begun: string | null;
  done: number;
  total: number | null;
  /** Absent: bytes. */
  unit?: 'bytes' | 'percent' | 'items';
  rate: number | null;
  seconds_left: number | null;
  state: 'running' | 'waiting' | 'failed' | 'done';
  error: string | null;
  can_stop: boolean;
}

/** A moment that clients can read, until it expires. */
export interface View {
  id: string;
  volume: string;
  /** Name that the creator chose, or null. */
  name: string | null;
  /** Address of the moment, such as `db@view-7f3a`. */
  address: string;
  /** Null for a view of a snapshot. */
  lsn: number | null;
  time: string;
  created: string;
  expires: string;
  clients: number;
  size: number;
  nbd: string[];
  iscsi: string[];
  commands: { system: string; command: string }[];
}

/** Body of `POST /volumes/{v}/views`. */
export interface CreateView {
  moment: string;
  lease_seconds?: number;
  name?: string;
  last_flush?: boolean;
}

/** `GET /volumes/{v}/changed?from=&to=`. */
export interface Changed {
  from: string;
  to: string | null;
  bytes: number;
  parts: { offset: number; length: number; bytes: number }[];
  ranges: { offset: number; length: number }[];
  partial: boolean;
}

export type Role = 'viewer' | 'operator' | 'admin';

/** `GET /session`. */
export interface Session {
  name: string;
  role: Role;
  expires: string;
}

/** An entry of `GET /access/users`. */
export interface AccessUser {
  name: string;
  role: Role;
  created: string;
  last_login: string | null;
}

/** An entry of `GET /access/tokens`. */
export interface AccessToken {
  name: string;
  role: string;
  volumes: string[];
  created: string;
  expires: string | null;
  last_used: string | null;
}

/** An entry of `GET /access/sessions`. */
export interface AccessSession {
  id: string;
  name: string;
  role: Role;
  address: string;
  begun: string;
  last_used: string;
  current: boolean;
}

/** An entry of `GET /audit`. */
export interface AuditEntry {
  time: string;
  principal: string;
  address: string | null;
  method: string;
  route: string;
  subject: string | null;
  result: number;
  duration_seconds: number;
}
