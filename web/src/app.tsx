/** The frame around every page: navigation, connection, log-in. */

import { signal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { reachable, session } from './api/client';
import { followEvents } from './api/events';
import { followLive } from './api/live';
import { logOut, may } from './api/session';
import { setTheme, type Theme, theme } from './lib/theme';
import { LogIn } from './pages/log-in';
import { Button } from './parts/basics';
import { DialogHost } from './parts/dialog';
import { rescueFocus } from './parts/focus';
import { Icon, type IconName } from './parts/icon';
import { Notices } from './parts/notices';
import { Tip } from './parts/tip';
import { followLink, path } from './router';
import { Page } from './routes';

const navigationOpen = signal(false);

const PAGES: [string, string, IconName, 'admin'?][] = [
  ['/', 'Overview', 'overview'],
  ['/volumes', 'Volumes', 'volumes'],
  ['/tree', 'Tree', 'tree'],
  ['/pool', 'Pool', 'pool'],
  ['/targets', 'Targets', 'targets'],
  ['/schedules', 'Schedules', 'schedules'],
  ['', '', 'close'],
  ['/tasks', 'Tasks', 'tasks'],
  ['/events', 'Events', 'events'],
  ['/access', 'Access', 'access', 'admin'],
  ['/audit', 'Audit', 'audit', 'admin'],
  ['/trash', 'Trash', 'trash'],
];

function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true">
      <path
        d="M10 2.5a7.5 7.5 0 1 1-6.9 4.6"
        fill="none"
        stroke="currentColor"
        stroke-width="2"
        stroke-linecap="round"
      />
      <path
        d="M2 3v4.6h4.6M10 6v4.3l2.8 1.7"
        fill="none"
        stroke="currentColor"
        stroke-width="2"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

function Brand() {
  return (
    <a class="brand" href="/">
      <Mark />
      Hindcast
    </a>
  );
}

function isCurrent(href: string): boolean {
  return href === '/' ? path.value === '/' : path.value === href || path.value.startsWith(`${href}/`);
}

function Navigation() {
  return (
    <nav id="navigation" class={`side ${navigationOpen.value ? 'open' : ''}`} aria-label="Pages">
      <Brand />
      {PAGES.filter(([, , , role]) => !role || may(role)).map(([href, name, icon]) =>
        href === '' ? (
          <div key="rule" class="rule" />
        ) : (
          <a key={href} class="page" href={href} aria-current={isCurrent(href) ? 'page' : undefined}>
            <Icon name={icon} />
            {name}
          </a>
        ),
      )}
      <div class="foot">
        <ThemeSwitch />
        <div class="line">
          <span>{session.value?.name}</span>
          <span class="soft small">{session.value?.role}</span>
          <span class="push">
            <Button onClick={logOut}>Log out</Button>
          </span>
        </div>
      </div>
    </nav>
  );
}

const THEMES: [Theme, string, IconName][] = [
  ['system', 'Colours of the system', 'screen'],
  ['light', 'Light colours', 'sun'],
  ['dark', 'Dark colours', 'moon'],
];

function ThemeSwitch() {
  return (
    <fieldset class="line theme-switch">
      <legend class="hidden-text">Colours</legend>
      {THEMES.map(([value, label, icon]) => (
        <Button
          key={value}
          icon={icon}
          label={label}
          pressed={theme.value === value}
          onClick={() => setTheme(value)}
        />
      ))}
    </fieldset>
  );
}

function TopBar() {
  return (
    <div class="top">
      <Brand />
      <span class="push">
        <button
          type="button"
          class="button quiet round"
          aria-label="Pages"
          aria-expanded={navigationOpen.value}
          aria-controls="navigation"
          onClick={() => {
            navigationOpen.value = !navigationOpen.value;
          }}
        >
          <Icon name={navigationOpen.value ? 'close' : 'menu'} />
        </button>
      </span>
    </div>
  );
}

function Shell() {
  useEffect(() => {
    const closeEvents = followEvents();
    const closeLive = followLive();
    return () => {
      closeEvents();
      closeLive();
    };
  }, []);
  const shown = useRef(path.value);
  useEffect(() => {
    navigationOpen.value = false;
    if (shown.current === path.value) return;
    shown.current = path.value;
    // A link inside the page goes with the page, and the focus with it.
    rescueFocus();
  }, [path.value]);
  return (
    <div class="shell">
      {/* biome-ignore lint/a11y/useValidAnchor: the link goes to a part of this page, and the fragment must not enter the address */}
      <a class="skip" href="#content" onClick={focusContent}>
        Go to the content
      </a>
      <TopBar />
      <Navigation />
      <main id="content" tabIndex={-1}>
        {!reachable.value && (
          <div class="lost" role="status">
            The server does not answer. The console tries again every few seconds, and the page shows the last
            answers.
          </div>
        )}
        <div class="page-body">
          <Page />
        </div>
      </main>
    </div>
  );
}

function focusContent(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById('content')?.focus();
}

export function App() {
  useEffect(() => {
    document.addEventListener('click', followLink);
    return () => document.removeEventListener('click', followLink);
  }, []);
  if (session.value === undefined) return null;
  return (
    <>
      {session.value === null ? <LogIn /> : <Shell />}
      <DialogHost />
      <Notices />
      <Tip />
    </>
  );
}
