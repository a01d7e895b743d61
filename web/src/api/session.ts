/** Log-in, log-out, and what a role may do. */

import { get, post, remove, session } from './client';
import type { Role, WhoAmI } from './schema';

/** Roles from the weakest on. A role that is not here reads no pages. */
const RANK: Partial<Record<Role, number>> = { viewer: 0, operator: 1, admin: 2 };

/** True if the session's role includes `role`. */
export function may(role: Role): boolean {
  const current = session.value;
  return Boolean(current && (RANK[current.role] ?? -1) >= (RANK[role] ?? 0));
}

/** Opens the session of this browser: by the link in the address if there is one, else by the cookie. */
export async function begin(): Promise<void> {
  const link = linkOf(location.hash);
  if (link) history.replaceState(history.state, '', location.pathname + location.search);
  if (link) await post('/session', { link }).catch(() => undefined);
  try {
    session.value = await get<WhoAmI>('/session');
  } catch {
    session.value = null;
  }
}

/** The secret of a one-time link, from the part of the address after `#`. */
export function linkOf(hash: string): string | null {
  return /^#link=([^&]+)$/.exec(hash)?.[1] ?? null;
}

export async function logIn(name: string, password: string): Promise<void> {
  await post('/session', { name, password });
  session.value = await get<WhoAmI>('/session');
}

export async function logOut(): Promise<void> {
  await remove('/session').catch(() => undefined);
  session.value = null;
}
