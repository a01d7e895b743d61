/** Which page an address shows. */

import type { ComponentChildren } from 'preact';
import { VolumePage } from './pages/volume/page';
import { Empty, PageHead } from './parts/basics';
import { match, path } from './router';

type Parts = Record<string, string>;

const ROUTES: [string, (parts: Parts) => ComponentChildren][] = [
  ['/volumes/:name', ({ name = '' }) => <VolumePage name={name} tab="" />],
  ['/volumes/:name/:tab', ({ name = '', tab = '' }) => <VolumePage name={name} tab={tab} />],
];

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
