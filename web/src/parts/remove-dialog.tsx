import type { ComponentChildren } from 'preact';
import { remove } from '../api/client';
import { reload } from '../api/resource';
import { FormDialog } from './dialog';

interface RemoveProps {
  /** What the button does, and to what: "Revoke", "the token backup". */
  verb: string;
  object: string;
  /** The route that removes it. */
  path: string;
  /** The routes whose answers change with it. */
  changes: string[];
  command: string;
  /** The message afterwards. */
  done: string;
  children: ComponentChildren;
}

/** Asks before something goes whose loss is no loss of data. */
export function RemoveDialog({ verb, object, path, changes, command, done, children }: RemoveProps) {
  const submit = async () => {
    await remove(path);
    await Promise.all(changes.map(reload));
    return { text: done };
  };
  const what = `${verb} ${object}`;
  return (
    <FormDialog title={what} what={`"${what}"`} danger command={command} submit={verb} onSubmit={submit}>
      {children}
    </FormDialog>
  );
}
