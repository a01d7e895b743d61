/** Dialogs that ask before something goes. */

import type { ComponentChildren } from 'preact';
import { remove } from '../api/client';
import { reload } from '../api/resource';
import { FormDialog } from './dialog';

interface ConfirmProps {
  title: string;
  /** What the button says. */
  submit: string;
  /** The work, as the first words of an error. The title stands for it if this is left out. */
  what?: string;
  run: () => Promise<unknown>;
  /** The routes whose answers change with it. */
  changes: string[];
  command: string;
  /** The message afterwards. */
  done: string;
  /** What the person types first, where data can be lost. */
  confirm?: string;
  danger?: boolean;
  children: ComponentChildren;
}

/** Says what a button takes away, and the command that does the same, before it does it. */
export function ConfirmDialog(props: ConfirmProps) {
  const { title, submit, what = `"${title}"`, run, changes, command, done, confirm, danger = true } = props;
  const work = async () => {
    await run();
    await Promise.all(changes.map(reload));
    return { text: done };
  };
  return (
    <FormDialog
      title={title}
      what={what}
      danger={danger}
      command={command}
      submit={submit}
      confirm={confirm}
      onSubmit={work}
    >
      {props.children}
    </FormDialog>
  );
}

interface RemoveProps {
  /** What the button does, and to what: "Revoke", "the token backup". */
  verb: string;
  object: string;
  /** The route that removes it. */
  path: string;
  changes: string[];
  command: string;
  done: string;
  confirm?: string;
  children: ComponentChildren;
}

/** Asks before something is deleted. */
export function RemoveDialog({ verb, object, path, ...props }: RemoveProps) {
  return <ConfirmDialog title={`${verb} ${object}`} submit={verb} run={() => remove(path)} {...props} />;
}
