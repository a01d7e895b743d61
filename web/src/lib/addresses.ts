/** The addresses under which clients find a volume, and what a client needs to use each. */

import type { Chap, Listeners, Target, TargetDefaults, Volume } from '../api/schema';

export interface Address {
  text: string;
  /** Who can use it, and what an initiator has to prove. Empty: there is nothing to say. */
  note: string;
}

const LOCAL = "For programs on the server's machine.";

const isLocal = (listener: string) => /^(127\.|localhost:|\[::1\]:)/.test(listener);

/** A listener as a client writes it. One on all addresses is reached by the host of this page. */
function reachable(listener: string, host: string): string {
  const port = listener.split(':').at(-1);
  return /^(0\.0\.0\.0|\[?::\]?):/.test(listener) ? `${host}:${port}` : listener;
}

function nbdAddress(listener: string, volume: string, host: string): Address {
  const [, socket] = /^unix:(.*)$/.exec(listener) ?? [];
  if (socket !== undefined) {
    const path = socket.split('/').map(encodeURIComponent).join('/');
    return { text: `nbd+unix:///${volume}?socket=${path}`, note: LOCAL };
  }
  return { text: `nbd://${reachable(listener, host)}/${volume}`, note: isLocal(listener) ? LOCAL : '' };
}

/** Names as a sentence has them: "a", "a or b", "a, b or c". */
function anyOf(names: string[]): string {
  return [names.slice(0, -1).join(', '), ...names.slice(-1)].filter(Boolean).join(' or ');
}

const accounts = (chap: Chap) => [chap.user, ...(chap.others ?? [])];

/**
 * What an initiator has to prove at a target. A target without accounts uses those of all targets,
 * which are undefined while the page does not know them. The accounts of a volume's own target
 * guard its data at every other target, too.
 */
export function chapNote(
  target: Target,
  own: Target | undefined,
  defaults: TargetDefaults | undefined,
): string {
  const effective = (of: Target) => of.chap ?? (defaults ? (defaults.chap ?? null) : undefined);
  const chap = effective(target);
  if (chap === undefined) return 'Whether initiators need CHAP is not known.';
  if (chap === null) {
    const guard = own && own.name !== target.name && own.chap;
    if (guard)
      return `Hidden from initiators without a CHAP account of ${own.name}, which this target lacks.`;
    return 'Initiators need no CHAP.';
  }
  const mutual = chap.mutual_user ? ` The target proves itself as ${chap.mutual_user}.` : '';
  const guard = own && own.name !== target.name ? effective(own) : null;
  const both = guard ? accounts(chap).filter((user) => accounts(guard).includes(user)) : accounts(chap);
  if (both.length === 0) return `Hidden from every initiator: no CHAP account is also one of ${own?.name}.`;
  return `Initiators need CHAP, as ${anyOf(both)}.${mutual}`;
}

/** What the page knows of the ways to a volume. */
export interface Ways {
  listeners: Listeners;
  targets: Target[];
  defaults: TargetDefaults | undefined;
  /** The host that this page came from. */
  host: string;
}

export function addressesOf(volume: Volume, { listeners, targets, defaults, host }: Ways): Address[] {
  const { name } = volume;
  const nbd = volume.nbd === false ? [] : listeners.nbd.map((listener) => nbdAddress(listener, name, host));
  const own = targets.find((target) => target.volume === name);
  const iscsi = targets.flatMap((target) => {
    const chap = chapNote(target, own, defaults);
    const luns = target.luns.filter(({ source }) => source === name);
    return listeners.iscsi.flatMap((listener) =>
      luns.map(({ lun }) => {
        const notes = [target.enabled ? '' : 'The target is disabled.', isLocal(listener) ? LOCAL : '', chap];
        const text = `iscsi://${reachable(listener, host)}/${target.name}/${lun}`;
        return { text, note: notes.filter(Boolean).join(' ') };
      }),
    );
  });
  return [...nbd, ...iscsi];
}
