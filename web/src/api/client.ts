/** Requests to the documented API, and what the console says when one fails. */

import { signal } from '@preact/signals';
import type { ErrorBody, ErrorKind, WhoAmI } from './schema';

const API = '/api/v1';

/** The session of this browser. `undefined`: not known yet. `null`: the log-in page is shown. */
export const session = signal<WhoAmI | null | undefined>(undefined);

/** False while the server does not answer. */
export const reachable = signal(true);

/** A request that failed. `message` says what failed and what to do. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly kind: ErrorKind | 'unreachable',
    message: string,
    /** Seconds after which the server wants to be asked again, or 0. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** A path below the API with its variable parts encoded: apiPath`/volumes/${name}/marks`. */
export function apiPath(parts: TemplateStringsArray, ...values: (string | number)[]): string {
  return parts.reduce(
    (path, part, index) =>
      path + part + (index < values.length ? encodeURIComponent(values[index] ?? '') : ''),
    '',
  );
}

/** A query string of the values that are not undefined, with its question mark. */
export function query(values: Record<string, string | number | boolean | undefined>): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined) parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return text && `?${text}`;
}

/** Sends a request and waits for its answer. Throws an `ApiError`. */
export async function request<T>(
  method: Method,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const headers: Record<string, string> = { accept: 'application/json' };
  // The server demands this type of every change, because a form of another site can't send it.
  if (method !== 'GET') headers['content-type'] = 'application/json';
  const response = await send(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await failure(response);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Sends a request as `fetch` does, and notes whether the server answers. */
export async function send(path: string, init: RequestInit): Promise<Response> {
  try {
    const response = await fetch(API + path, { credentials: 'same-origin', ...init });
    if (response.status === 502) throw new TypeError('the proxy reached no server');
    reachable.value = true;
    return response;
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    reachable.value = false;
    throw new ApiError(
      0,
      'unreachable',
      'The server does not answer. Check that it runs and that this machine can reach it.',
    );
  }
}

/** The error of an answer. A 401 ends the session, so that the log-in page appears. */
export async function failure(response: Response): Promise<ApiError> {
  if (response.status === 401) session.value = null;
  const body = (await response.json().catch(() => null)) as ErrorBody | null;
  const message = body?.message ?? `The server answered with status ${response.status}.`;
  const retryAfter = Number(response.headers.get('retry-after')) || 0;
  return new ApiError(response.status, body?.kind ?? 'internal', asSentence(message), retryAfter);
}

/** A message of the server as a sentence of the console. */
function asSentence(message: string): string {
  const text = message.trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
}

/** The text that a page shows for any error. */
export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export const get = <T>(path: string, signal?: AbortSignal) => request<T>('GET', path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}) => request<T>('POST', path, body);
export const put = <T>(path: string, body: unknown) => request<T>('PUT', path, body);
export const patch = <T>(path: string, body: unknown) => request<T>('PATCH', path, body);
export const remove = <T>(path: string) => request<T>('DELETE', path);
