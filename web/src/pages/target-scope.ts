import { apiPath } from '../api/client';

/** What has rules and CHAP accounts: a target, or the defaults of all targets. */
export interface TargetScope {
  /** The route below which its rules and accounts are. */
  path: string;
  /** How a command names it. */
  word: string;
  text: string;
  /** The route whose answer changes with it. */
  changes: string;
}

export function targetScope(name?: string): TargetScope {
  return name
    ? { path: apiPath`/targets/${name}`, word: name, text: name, changes: '/targets' }
    : { path: '/target-defaults', word: '--all', text: 'all targets', changes: '/target-defaults' };
}
