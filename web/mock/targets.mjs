// The routes of iSCSI targets, and of the rules for NBD, in memory.

const GIB = 1024 ** 3;

function targets() {
  const lun = (number, source, size) => ({
    lun: number,
    source,
    size,
    backing: 'volume',
    read_only: false,
    uuid: source,
    block_size: 512,
    error: null,
  });
  const session = (initiator, address) => ({
    tsih: 1,
    isid: '00023d000001',
    initiator,
    addresses: [address],
    age: 5 * 3600,
    commands: 912233,
    read_bytes: 81 * GIB,
    write_bytes: 44 * GIB,
    read_only: false,
    portal_group: 1,
    user: 'shop',
    luns: [0, 1],
  });
  return [
    {
      name: 'iqn.2026-01.org.hindcast:shop',
      alias: 'Shop database',
      enabled: true,
      chap: { user: 'shop', others: ['report'], mutual_user: 'storage' },
      unmatched: 'refused',
      volume: null,
      warnings: [],
      reservations: [],
      luns: [lun(0, 'db', 200 * GIB), lun(1, 'db-log', 40 * GIB)],
      rules: [
        {
          initiator: 'iqn.2004-10.com.ubuntu:01:shop-*',
          address: '10.0.4.0/24',
          access: 'read_write',
          luns: null,
          user: 'shop',
        },
        {
          initiator: 'iqn.2004-10.com.ubuntu:01:report',
          address: null,
          access: 'read_only',
          luns: [0],
          user: null,
        },
        { initiator: '*', address: null, access: 'denied', luns: null, user: null },
      ],
      sessions: [session('iqn.2004-10.com.ubuntu:01:shop-1', '10.0.4.21'), session('iqn.2004-10.com.ubuntu:01:shop-2', '10.0.4.22')],
    },
    {
      name: 'iqn.2026-01.org.hindcast:mail',
      alias: null,
      enabled: true,
      chap: null,
      unmatched: 'refused',
      volume: 'mail',
      warnings: [],
      reservations: [],
      luns: [lun(0, 'mail', 500 * GIB)],
      rules: [
        {
          initiator: 'iqn.1991-05.com.microsoft:mail',
          address: '10.0.4.30',
          access: 'read_write',
          luns: null,
          user: null,
        },
      ],
      sessions: [session('iqn.1991-05.com.microsoft:mail', '10.0.4.30')],
    },
    {
      name: 'iqn.2026-01.org.hindcast:vm-build-01',
      alias: null,
      enabled: false,
      chap: null,
      unmatched: 'refused',
      volume: 'vm-build-01',
      warnings: ['No rule allows an initiator.'],
      reservations: [],
      luns: [lun(0, 'vm-build-01', 80 * GIB)],
      rules: [],
      sessions: [],
    },
  ];
}

/** Rules and accounts that hold for all targets. */
const DEFAULTS = {
  rules: [{ initiator: '*', address: '10.0.66.0/24', access: 'denied', luns: null, user: null }],
  unmatched: 'refused',
  chap: null,
};

/** Rules of NBD by the volume, and under the empty name those of all volumes. */
const NBD_RULES = new Map([
  [
    '',
    [
      { access: 'read_write', addresses: ['10.0.8.0/24'], certificate: 'CN=vm-host-*' },
      { access: 'denied', addresses: ['10.0.8.66'], certificate: null },
    ],
  ],
]);

function nbdAccess(volume) {
  if (!NBD_RULES.has(volume)) NBD_RULES.set(volume, volume === 'db' ? [] : [{ access: 'read_only', addresses: ['10.0.9.0/24'], certificate: null }]);
  return { volume: volume || null, unmatched: 'refused', unmatched_on_loopback: 'open', warnings: [], rules: NBD_RULES.get(volume) };
}

/** Adds a rule at its place, or as the last one. */
function addRule(rules, { at, ...rule }) {
  rules.splice(at ? at - 1 : rules.length, 0, { addresses: [], ...rule });
}

function setChap(owner, { user, mutual_user: mutual, no_mutual: none }) {
  const users = owner.chap ? [owner.chap.user, ...owner.chap.others] : [];
  const [first, ...others] = users.includes(user) ? users : [...users, user];
  owner.chap = { user: first, others, mutual_user: none ? null : (mutual ?? owner.chap?.mutual_user ?? null) };
  return owner;
}

function dropChap(owner, user) {
  const [first, ...others] = [owner.chap.user, ...owner.chap.others].filter((name) => name !== user);
  owner.chap = first ? { ...owner.chap, user: first, others } : null;
}

const ALL = targets();
const target = (wanted) => ALL.find(({ name }) => name === wanted);

export const TARGETS = {
  'GET /targets': () => ALL,
  'PATCH /targets/{t}': ({ t, body }) => Object.assign(target(t), body),
  'POST /targets/{t}/rules': ({ t, body }) => addRule(target(t).rules, body),
  'DELETE /targets/{t}/rules/{n}': ({ t, n }) => void target(t).rules.splice(n - 1, 1),
  'PUT /targets/{t}/chap': ({ t, body }) => setChap(target(t), body),
  'DELETE /targets/{t}/chap': ({ t }) => void Object.assign(target(t), { chap: null }),
  'DELETE /targets/{t}/chap/{user}': ({ t, user }) => dropChap(target(t), user),
  'POST /targets/{t}/luns': ({ t, body }) => {
    const { luns } = target(t);
    const number = body.lun ?? Math.max(-1, ...luns.map(({ lun }) => lun)) + 1;
    luns.push({ ...luns[0], lun: number, source: body.volume ?? body.file ?? body.device, read_only: Boolean(body.read_only) });
    return target(t);
  },
  'DELETE /targets/{t}/luns/{n}': ({ t, n }) => void Object.assign(target(t), { luns: target(t).luns.filter(({ lun }) => lun !== Number(n)) }),
  'GET /target-defaults': () => DEFAULTS,
  'POST /target-defaults/rules': ({ body }) => addRule(DEFAULTS.rules, body),
  'DELETE /target-defaults/rules/{n}': ({ n }) => void DEFAULTS.rules.splice(n - 1, 1),
  'PUT /target-defaults/chap': ({ body }) => setChap(DEFAULTS, body),
  'DELETE /target-defaults/chap': () => void Object.assign(DEFAULTS, { chap: null }),
  'GET /nbd-access': () => [nbdAccess('')],
  'POST /nbd-access/rules': ({ body }) => addRule(NBD_RULES.get(''), body),
  'DELETE /nbd-access/rules/{n}': ({ n }) => void NBD_RULES.get('').splice(n - 1, 1),
  'GET /volumes/{v}/nbd-access': ({ v }) => nbdAccess(v),
  'POST /volumes/{v}/nbd-access/rules': ({ v, body }) => addRule(nbdAccess(v).rules, body),
  'DELETE /volumes/{v}/nbd-access/rules/{n}': ({ v, n }) => void nbdAccess(v).rules.splice(n - 1, 1),
};
