// Every page and every dialog of the console, as the pictures and the checks of accessibility visit
// them. A visit with `act` opens something on its page: a dialog, unless `dialog` says otherwise.

const MINUTE = 60_000;

/** The address of a time before now, for a page that shows a moment. */
const ago = (minutes) => new Date(Date.now() - minutes * MINUTE).toISOString();

const press = (name) => (page) => page.getByRole('button', { name, exact: true }).first().click();

/** Presses a button of the dialog that another button opens. */
const pressTwice = (first, second) => async (page) => {
  await press(first)(page);
  await page.getByRole('dialog').getByRole('button', { name: second, exact: true }).first().click();
};

/** A letter of the timeline. */
const key = (letter) => async (page) => {
  await page.locator('.stage').first().waitFor();
  await page.keyboard.press(letter);
};

/** Chooses an entry of a choice in the dialog that a button opens. */
const choose = (button, label, value) => async (page) => {
  await press(button)(page);
  await page.getByRole('dialog').getByLabel(label, { exact: true }).selectOption(value);
};

async function createToken(page) {
  await press('Create a token')(page);
  await page.getByLabel('Name').fill(`ci-${Date.now()}`);
  await page.getByRole('button', { name: 'Create the token' }).click();
  await page.getByRole('heading', { name: 'was created' }).waitFor();
}

async function deleteSome(page) {
  await page.getByLabel('Select scratch').check();
  await page.getByLabel('Select mail').check();
  await press('Delete 2 volumes')(page);
}

const moment = () => `/volumes/db?last=10800&at=${ago(44)}`;
const two = () => `${moment()}&and=${ago(100)}`;
const target = (name) => `iqn.2026-01.org.hindcast:${name}`;
/**
 * The name of db's newest hourly snapshot, as the mock makes it when it starts. A test that goes on
 * into the next hour still has it.
 */
const HOURLY = (() => {
  const hour = new Date(Date.now() - (Date.now() % (60 * MINUTE)) - 60 * MINUTE);
  return `hourly-${hour.toISOString().slice(5, 13).replace('T', '-')}`;
})();
const onHourly = (verb) => (page) => press(`${verb} ${HOURLY}`)(page);

const snapshots = () => '/volumes/db/snapshots';
const settings = () => '/volumes/db/settings';
const schedules = () => '/schedules';
const targets = () => '/targets';
const access = () => '/access';

export const PAGES = [
  { name: 'log-in', path: () => '/', anonymous: true },
  { name: 'overview', path: () => '/' },
  { name: 'volumes', path: () => '/volumes' },
  { name: 'volumes-create', path: () => '/volumes', act: press('Create a volume') },
  { name: 'volumes-delete', path: () => '/volumes', act: deleteSome },
  { name: 'volume-timeline', path: () => '/volumes/db' },
  { name: 'volume-moment', path: () => `${two()}&heat=` },
  { name: 'volume-week', path: () => `/volumes/db?last=590000&at=${ago(3000)}` },
  { name: 'volume-writes', path: () => `/volumes/db?from=${ago(30.02)}&to=${ago(30)}&at=${ago(30.01)}` },
  { name: 'volume-open', path: moment, act: press('Open') },
  { name: 'volume-files', path: moment, act: press('Files') },
  { name: 'volume-go-back', path: moment, act: press('Go back here') },
  { name: 'volume-compare', path: two, act: press('Compare the two') },
  { name: 'volume-recover', path: moment, act: press('Recover to a new volume') },
  { name: 'volume-keep', path: moment, act: press('Keep as snapshot') },
  { name: 'volume-mark', path: moment, act: press('Mark now') },
  { name: 'volume-type-time', path: moment, act: key('t') },
  { name: 'volume-find', path: moment, act: press('Find the moment') },
  { name: 'volume-snapshots', path: snapshots },
  { name: 'volume-snapshots-branches', path: () => '/volumes/web-images/snapshots' },
  { name: 'volume-snapshot-take', path: snapshots, act: press('Take a snapshot') },
  { name: 'volume-snapshot-clone', path: snapshots, act: onHourly('Clone') },
  { name: 'volume-snapshot-delete', path: snapshots, act: onHourly('Delete') },
  { name: 'volume-snapshot-roll-back', path: snapshots, act: onHourly('Roll back to') },
  { name: 'volume-activity', path: () => '/volumes/db/activity' },
  { name: 'volume-access', path: () => '/volumes/db/access' },
  { name: 'volume-access-rule', path: () => '/volumes/db/access', act: press('Add a rule') },
  {
    name: 'volume-access-disconnect',
    path: () => '/volumes/db/access',
    act: press('Disconnect 10.0.4.21:41820'),
  },
  { name: 'volume-settings', path: settings },
  { name: 'volume-history', path: settings, act: press('Change') },
  { name: 'volume-resize', path: settings, act: press('Resize') },
  { name: 'volume-rename', path: settings, act: press('Rename') },
  { name: 'volume-labels', path: settings, act: press('Labels') },
  { name: 'volume-refuse-writes', path: settings, act: press('Refuse writes') },
  { name: 'volume-nbd-off', path: settings, act: press('Serve over NBD') },
  { name: 'volume-auto-delete', path: settings, act: press('Delete old snapshots by itself') },
  { name: 'volume-delete', path: settings, act: press('Delete db') },
  { name: 'volume-no-history', path: () => '/volumes/scratch' },
  { name: 'tree', path: () => '/tree' },
  { name: 'pool', path: () => '/pool' },
  { name: 'pool-add', path: () => '/pool', act: press('Add a physical volume') },
  { name: 'pool-drain', path: () => '/pool', act: press('Drain') },
  { name: 'pool-remove', path: () => '/pool', act: press('Remove') },
  { name: 'targets', path: targets },
  { name: 'target-create', path: targets, act: press('Create a target') },
  { name: 'target-delete', path: targets, act: press(`Delete the target ${target('shop')}`) },
  { name: 'target-disable', path: targets, act: press(`Disable ${target('shop')}`) },
  { name: 'target-lun', path: targets, act: press(`Add a LUN to ${target('shop')}`) },
  {
    name: 'target-lun-snapshot',
    path: targets,
    act: choose(`Add a LUN to ${target('shop')}`, 'It is', 'snapshot'),
  },
  { name: 'target-lun-remove', path: targets, act: press(`Remove LUN 1 of ${target('shop')}`) },
  { name: 'target-rule', path: targets, act: press(`Add a rule to ${target('shop')}`) },
  { name: 'target-rule-remove', path: targets, act: press('Remove rule 1') },
  {
    name: 'target-chap',
    path: targets,
    act: choose(`CHAP of ${target('shop')}`, 'The target proves itself to initiators', 'set'),
  },
  {
    name: 'target-chap-remove',
    path: targets,
    act: pressTwice(`CHAP of ${target('shop')}`, 'Remove the account report'),
  },
  { name: 'schedules', path: schedules },
  { name: 'schedules-create', path: schedules, act: press('Create a schedule') },
  { name: 'schedules-change', path: schedules, act: press('Change the schedule office-hours') },
  { name: 'schedules-delete', path: schedules, act: press('Delete the schedule hourly') },
  { name: 'group-create', path: schedules, act: press('Create a group') },
  { name: 'group-change', path: schedules, act: press('Change the volumes of shop') },
  { name: 'group-snapshot', path: schedules, act: press('Take a snapshot of shop') },
  { name: 'group-mark', path: schedules, act: press('Mark the present of shop') },
  { name: 'group-roll-back', path: schedules, act: press('Roll back shop') },
  { name: 'group-delete', path: schedules, act: press('Delete the group shop') },
  { name: 'tasks', path: () => '/tasks' },
  { name: 'tasks-stop', path: () => '/tasks', act: press('Stop flatten of db-0914') },
  { name: 'events', path: () => '/events' },
  { name: 'access', path: access },
  { name: 'access-user', path: access, act: press('Add a user') },
  { name: 'access-user-change', path: access, act: press('Change jonas') },
  { name: 'access-user-remove', path: access, act: press('Remove jonas') },
  { name: 'access-token', path: access, act: press('Create a token') },
  { name: 'access-secret', path: access, act: createToken },
  { name: 'access-token-revoke', path: access, act: press('Revoke prometheus') },
  { name: 'access-end', path: access, act: press('End the session of jonas at 10.0.4.12') },
  { name: 'audit', path: () => '/audit' },
  { name: 'audit-entry', path: () => '/audit', act: press('Show POST /session') },
  { name: 'trash', path: () => '/trash' },
  { name: 'trash-restore', path: () => '/trash', act: press('Restore') },
  { name: 'trash-purge', path: () => '/trash', act: press('Delete vm-old-printer for good') },
  { name: 'missing', path: () => '/nothing' },
];

/** Waits until nothing of the page moves or loads any more. */
export async function settle(page) {
  await page.waitForFunction(() => !document.querySelector('[aria-busy]'), null, { timeout: 10_000 });
  await page.evaluate(async () => {
    const frame = () => new Promise(requestAnimationFrame);
    await frame();
    await Promise.all(document.getAnimations().map(({ finished }) => finished.catch(() => undefined)));
    await frame();
  });
}

/** Opens a page, and what `act` opens on it, and waits until it shows its data. */
export async function visit(page, url, { name, path, act }) {
  await page.goto(url + path());
  await page.waitForSelector('h1');
  await settle(page);
  if (!act) return;
  await act(page);
  if (!(await page.locator('dialog[open]').count())) throw new Error(`${name} opened no dialog`);
  await settle(page);
}
