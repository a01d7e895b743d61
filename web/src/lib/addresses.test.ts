import { describe, expect, test } from 'vitest';
import type { Chap, Target, TargetDefaults, Volume } from '../api/schema';
import { addressesOf, chapNote } from './addresses';

const volume = (changes = {}) => ({ name: 'db', nbd: true, ...changes }) as Volume;
const target = (name: string, chap: Chap | null, of: string | null = null) =>
  ({ name, chap, volume: of, enabled: true, luns: [{ lun: 0, source: 'db' }] }) as unknown as Target;
const defaults = (chap: Chap | null = null) => ({ chap, rules: [], unmatched: 'refused' }) as TargetDefaults;
const ways = (changes = {}) => ({
  listeners: { api: [], nbd: [], iscsi: [] },
  targets: [],
  defaults: defaults(),
  host: 'store.example',
  ...changes,
});

describe('addresses', () => {
  test('of NBD name the network, this machine, and the Unix socket', () => {
    const nbd = ['0.0.0.0:10809', '[::]:10810', '10.0.0.5:10809', '127.0.0.1:1', 'unix:/run/a b/nbd.sock'];
    expect(addressesOf(volume(), ways({ listeners: { api: [], nbd, iscsi: [] } }))).toEqual([
      { text: 'nbd://store.example:10809/db', note: '' },
      { text: 'nbd://store.example:10810/db', note: '' },
      { text: 'nbd://10.0.0.5:10809/db', note: '' },
      { text: 'nbd://127.0.0.1:1/db', note: "For programs on the server's machine." },
      { text: 'nbd+unix:///db?socket=/run/a%20b/nbd.sock', note: "For programs on the server's machine." },
    ]);
  });

  test('leave NBD out where it is switched off', () => {
    const listeners = { api: [], nbd: ['unix:/nbd.sock'], iscsi: [] };
    expect(addressesOf(volume({ nbd: false }), ways({ listeners }))).toEqual([]);
  });

  test('of iSCSI say what an initiator has to prove', () => {
    const listeners = { api: [], nbd: [], iscsi: ['0.0.0.0:3260'] };
    const targets = [target('iqn:db', { user: 'alice' }, 'db'), target('iqn:other', null)];
    expect(addressesOf(volume(), ways({ listeners, targets: targets.slice(0, 1) }))).toEqual([
      { text: 'iscsi://store.example:3260/iqn:db/0', note: 'Initiators need CHAP, as alice.' },
    ]);
    const disabled = { ...target('iqn:db', null, 'db'), enabled: false };
    expect(addressesOf(volume(), ways({ listeners, targets: [disabled] }))[0]?.note).toBe(
      'The target is disabled. Initiators need no CHAP.',
    );
    const other = { ...target('iqn:no', null), luns: [] };
    expect(addressesOf(volume(), ways({ listeners, targets: [other] }))).toEqual([]);
  });
});

describe('CHAP of a target', () => {
  const alice = { user: 'alice' };

  test('is its own, else that of all targets, else not known or not needed', () => {
    const own = target('iqn:db', { user: 'alice', others: ['bob', 'carl'], mutual_user: 'store' }, 'db');
    const bare = target('iqn:db', null, 'db');
    expect(chapNote(own, own, undefined)).toBe(
      'Initiators need CHAP, as alice, bob or carl. The target proves itself as store.',
    );
    expect(chapNote(bare, bare, defaults(alice))).toBe('Initiators need CHAP, as alice.');
    expect(chapNote(bare, bare, defaults())).toBe('Initiators need no CHAP.');
    expect(chapNote(bare, bare, undefined)).toBe('Whether initiators need CHAP is not known.');
  });

  test("at another target needs an account of the volume's own target, too", () => {
    const own = target('iqn:db', alice, 'db');
    const both = target('iqn:shop', { user: 'bob', others: ['alice'] });
    expect(chapNote(both, own, defaults())).toBe('Initiators need CHAP, as alice.');
    expect(chapNote(target('iqn:shop', { user: 'bob' }), own, defaults())).toMatch(/^Hidden from every/);
    expect(chapNote(target('iqn:shop', null), own, defaults())).toMatch(/^Hidden from initiators without/);
    expect(chapNote(target('iqn:shop', { user: 'bob' }), target('iqn:db', null, 'db'), defaults())).toBe(
      'Initiators need CHAP, as bob.',
    );
  });
});
