/** Which page an address shows. */

import type { ComponentChildren } from 'preact';
import { may } from './api/session';
import { AccessPage } from './pages/access';
import { AuditPage } from './pages/audit';
import { EventsPage } from './pages/events';
import { OverviewPage } from './pages/overview';
import { PoolPage } from './pages/pool';
import { SchedulesPage } from './pages/schedules';
import { TargetsPage } from './pages/targets';
import { TasksPage } from './pages/tasks';
import { TrashPage } from './pages/trash';
import { TreePage } from './pages/tree';
import { VolumePage } from './pages/volume/page';
import { VolumesPage } from './pages/volumes';
import { Empty, PageHead } from './parts/basics';
import { match, path } from './router';

type Parts = Record<string, string>;

const adminOnly = (page: ComponentChildren) => (may('admin') ? page : <Refused />);

const ROUTES: [string, (parts: Parts) => ComponentChildren][] = [
  ['', () => <OverviewPage />],
  ['/volumes', () => <VolumesPage />],
  ['/volumes/:name', ({ name = '' }) => <VolumePage key={name} name={name} tab="" />],
  ['/volumes/:name/:tab', ({ name = '', tab = '' }) => <VolumePage key={name} name={name} tab={tab} />],
  ['/trash', () => <TrashPage />],
  ['/tree', () => <TreePage />],
  ['/pool', () => <PoolPage />],
  ['/targets', () => <TargetsPage />],
  ['/schedules', () => <SchedulesPage />],
  ['/tasks', () => <TasksPage />],
  ['/events', () => <EventsPage />],
  ['/access', () => adminOnly(<AccessPage />)],
  ['/audit', () => adminOnly(<AuditPage />)],
];

function Refused() {
  return (
    <>
      <PageHead title="This page is for administrators" />
      <Empty title="Your role does not include this page" action={<a href="/">Go to the overview</a>} />
    </>
  );
}

export function Page() {
  for (const [pattern, page] of ROUTES) {
    const parts = match(pattern, path.value);
    if (parts) return page(parts);
  }
  return (
    <>
      <PageHead title="This page does not exist" />
      <Empty title="No page has this address" action={<a href="/">Go to the overview</a>} />
    </>
  );
}
