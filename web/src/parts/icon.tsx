/** Icons as outlines on a grid of 16. They are decoration; the text beside them carries the meaning. */

const PATHS = {
  overview: 'M2.5 9.5h4v-7h-4zM9.5 6.5h4v-4h-4zM9.5 13.5h4v-4h-4zM2.5 13.5h4v-1h-4z',
  volumes:
    'M2.5 4c0-1 2.5-1.7 5.5-1.7s5.5.7 5.5 1.7-2.5 1.7-5.5 1.7S2.5 5 2.5 4v8c0 1 2.5 1.7 5.5 1.7s5.5-.7 5.5-1.7V4M2.5 8c0 1 2.5 1.7 5.5 1.7s5.5-.7 5.5-1.7',
  tree: 'M2.5 3.5h8M4.5 3.5v4.5a2 2 0 0 0 2 2h3M4.5 8v3a2 2 0 0 0 2 2h7M12.5 10h1',
  pool: 'M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01',
  targets: 'M8 2.5v3M8 10.5v3M2.5 8h3M10.5 8h3M8 8h.01',
  schedules: 'M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3l2 1.5',
  tasks: 'M2.5 4l1.2 1.2L6 3M2.5 11l1.2 1.2L6 10M8.5 4.5h5M8.5 11.5h5',
  events: 'M2.5 8h2.2l1.6-4.5 3 9 1.6-4.5h2.6',
  access: 'M8 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c0-2.5 2.2-4 5-4s5 1.5 5 4',
  audit: 'M4 2.5h5l3 3v8H4zM6 8h4M6 10.5h4',
  files: 'M2.5 4h4l1.2 1.5h5.8v7h-11z',
  trash: 'M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.6 9h5.8l.6-9',
  plus: 'M8 3v10M3 8h10',
  minus: 'M3 8h10',
  close: 'M4 4l8 8M12 4l-8 8',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  warning: 'M8 2.5l6 11H2zM8 6.5v3.5M8 12h.01',
  info: 'M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 7.5v3.5M8 5h.01',
  check: 'M3 8.5l3.2 3L13 4.5',
  camera: 'M2.5 5h2.7l1-1.7h3.6l1 1.7h2.7v8h-11zM8 11a2.2 2.2 0 1 0 0-4.4A2.2 2.2 0 0 0 8 11z',
  flag: 'M4 13.5v-11M4 3h8l-2 2.8 2 2.7H4',
  eye: 'M1.8 8S4 3.8 8 3.8 14.2 8 14.2 8 12 12.2 8 12.2 1.8 8 1.8 8zM8 9.7a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4z',
  back: 'M6 3.5L2.5 7 6 10.5M2.5 7h7a4 4 0 0 1 0 6.5',
  branch: 'M4.5 2.5v11M4.5 9.5c0-3 6-1.5 6-5M12.2 3.9a1.7 1.7 0 1 1-3.4 0 1.7 1.7 0 0 1 3.4 0z',
  compare: 'M5 2.5v11M11 2.5v11M5 5H2.5M11 11h2.5M7 8h2',
  search: 'M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2',
  sun: 'M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM8 1.8v1M8 13.2v1M1.8 8h1M13.2 8h1M3.6 3.6l.7.7M11.7 11.7l.7.7M3.6 12.4l.7-.7M11.7 4.3l.7-.7',
  moon: 'M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5z',
  screen: 'M2.5 3.5h11v7h-11zM6 13.5h4',
  up: 'M8 12.5v-9M4.5 7L8 3.5 11.5 7',
  down: 'M8 3.5v9M4.5 9L8 12.5 11.5 9',
  clock: 'M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2h2.5',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.4"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}
