// Every page of the console, as the pictures and the checks of accessibility visit it.

const MINUTE = 60_000;

/** The address of a time before now, for a page that shows a moment. */
const ago = (minutes) => new Date(Date.now() - minutes * MINUTE).toISOString();

const press = (name) => (page) => page.getByRole('button', { name, exact: true }).first().click();

async function createToken(page) {
  await press('Create a token')(page);
  await page.getByLabel('Name').fill(`ci-${Date.now()}`);
  await page.getByRole('button', { name: 'Create the token' }).click();
  await page.getByRole('heading', { name: 'was created' }).waitFor();
}

export const PAGES = [
  { name: 'overview', path: () => '/' },
  { name: 'volumes', path: () => '/volumes' },
  { name: 'volumes-create', path: () => '/volumes', act: press('Create a volume') },
  { name: 'volume-timeline', path: () => '/volumes/db' },
  { name: 'volume-moment', path: () => `/volumes/db?last=10800&at=${ago(44)}&and=${ago(100)}&heat=` },
  { name: 'volume-week', path: () => `/volumes/db?last=590000&at=${ago(3000)}` },
  { name: 'volume-writes', path: () => `/volumes/db?from=${ago(30.02)}&to=${ago(30)}&at=${ago(30.01)}` },
  { name: 'volume-open', path: () => `/volumes/db?last=10800&at=${ago(44)}`, act: press('Open') },
  { name: 'volume-go-back', path: () => `/volumes/db?last=10800&at=${ago(44)}`, act: press('Go back here') },
  {
    name: 'volume-compare',
    path: () => `/volumes/db?last=10800&at=${ago(44)}&and=${ago(100)}`,
    act: press('Compare the two'),
  },
  {
    name: 'volume-recover',
    path: () => `/volumes/db?last=10800&at=${ago(44)}`,
    act: press('Recover to a new volume'),
  },
  {
    name: 'volume-find',
    path: () => `/volumes/db?last=10800&at=${ago(44)}`,
    act: press('Find the moment'),
  },
  { name: 'volume-snapshots', path: () => '/volumes/db/snapshots' },
  { name: 'volume-activity', path: () => '/volumes/db/activity' },
  { name: 'volume-access', path: () => '/volumes/db/access' },
  { name: 'volume-settings', path: () => '/volumes/db/settings' },
  { name: 'volume-history', path: () => '/volumes/db/settings', act: press('Change') },
  { name: 'volume-delete', path: () => '/volumes/db/settings', act: press('Delete db') },
  { name: 'volume-no-history', path: () => '/volumes/scratch' },
  { name: 'tree', path: () => '/tree' },
  { name: 'pool', path: () => '/pool' },
  { name: 'targets', path: () => '/targets' },
  { name: 'schedules', path: () => '/schedules' },
  { name: 'schedules-create', path: () => '/schedules', act: press('Create a schedule') },
  { name: 'tasks', path: () => '/tasks' },
  { name: 'events', path: () => '/events' },
  { name: 'access', path: () => '/access' },
  { name: 'access-user', path: () => '/access', act: press('Add a user') },
  { name: 'access-token', path: () => '/access', act: press('Create a token') },
  { name: 'access-secret', path: () => '/access', act: createToken },
  { name: 'access-end', path: () => '/access', act: press('Revoke prometheus') },
  { name: 'audit', path: () => '/audit' },
  { name: 'trash', path: () => '/trash' },
  { name: 'missing', path: () => '/nothing' },
];

/** Opens a page and waits until it shows its data. */
export async function visit(page, url, { path, act }) {
  await page.goto(url + path());
  await page.waitForSelector('main h1');
  await page.waitForFunction(() => !document.querySelector('[aria-busy]'), null, { timeout: 5000 });
  if (act) await act(page);
  await page.waitForTimeout(700);
}
