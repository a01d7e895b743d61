/** Short messages about what was done, with an optional action such as Undo. */

import { signal } from '@preact/signals';
import { errorText } from '../api/client';
import { Button } from './basics';
import { rescueFocus } from './focus';

export interface Action {
  label: string;
  run: () => void;
}

interface Notice {
  id: number;
  text: string;
  failed: boolean;
  action?: Action;
}

const SHOWN_FOR = 8000;

/** A message with an action stays longer, because a person needs time to decide. */
const SHOWN_WITH_ACTION = 60_000;

const notices = signal<Notice[]>([]);
let nextId = 1;

function dismiss(id: number): void {
  notices.value = notices.value.filter((notice) => notice.id !== id);
  rescueFocus();
}

function show(notice: Omit<Notice, 'id'>): void {
  const id = nextId;
  nextId += 1;
  notices.value = [...notices.value.slice(-3), { ...notice, id }];
  setTimeout(() => dismiss(id), notice.action ? SHOWN_WITH_ACTION : SHOWN_FOR);
}

export function notify(text: string, action?: Action): void {
  show({ text, failed: false, action });
}

/** Runs an action of a button, and shows why it failed. */
export async function attempt(what: string, run: () => Promise<unknown>): Promise<void> {
  try {
    await run();
  } catch (error) {
    show({ text: `${what} failed. ${errorText(error)}`, failed: true });
  }
}

export function Notices() {
  return (
    <div class="notices" role="status">
      {notices.value.map(({ id, text, failed, action }) => (
        <div key={id} class={`notice ${failed ? 'b' : ''}`}>
          <p>{text}</p>
          {action && (
            <Button
              onClick={() => {
                dismiss(id);
                action.run();
              }}
            >
              {action.label}
            </Button>
          )}
          <Button icon="close" kind="quiet" label="Dismiss" onClick={() => dismiss(id)} />
        </div>
      ))}
    </div>
  );
}
