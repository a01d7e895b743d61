/** Light or dark: by the system, or by the switch. */

import { signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';

const KEY = 'theme';

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === 'light' || value === 'dark' ? value : 'system';
}

export const theme = signal<Theme>(stored());

/** Grows when the colours change, so that canvases are drawn anew. */
export const themeChanges = signal(0);

export function setTheme(next: Theme): void {
  theme.value = next;
  if (next === 'system') localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  applyTheme();
}

export function applyTheme(): void {
  if (theme.value === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  themeChanges.value += 1;
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  themeChanges.value += 1;
});
