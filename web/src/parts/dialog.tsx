/** Dialogs. One is open at a time; when it closes, the focus returns to what opened it. */

import { signal } from '@preact/signals';
import type { ComponentChildren, VNode } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { errorText } from '../api/client';
import { Button, Command, Failure } from './basics';
import { TextField } from './fields';
import { rescueFocus } from './focus';
import { type Action, notify } from './notices';

const open = signal<VNode | null>(null);
let opener: Element | null = null;

export function openDialog(dialog: VNode): void {
  if (!open.value) opener = document.activeElement;
  open.value = dialog;
}

export function closeDialog(): void {
  open.value = null;
  const target = opener;
  opener = null;
  // The element is not focusable until the modal dialog is gone from the page.
  requestAnimationFrame(() => {
    if (target instanceof HTMLElement && target.isConnected) target.focus();
    rescueFocus();
  });
}

export const isDialogOpen = () => open.value !== null;

/** The place of the open dialog in the page. */
export function DialogHost() {
  return open.value;
}

/** What has the focus first: the chosen field, any field, or the button that changes the least. */
function firstOf(dialog: HTMLElement | null): HTMLElement | null {
  for (const choice of ['[data-first]', 'input, select, textarea', 'footer .main', 'footer button']) {
    const found = dialog?.querySelector<HTMLElement>(choice);
    if (found) return found;
  }
  return null;
}

interface FrameProps {
  title: string;
  wide?: boolean;
  children: ComponentChildren;
}

/** A modal dialog with a title and a close button. Escape closes it. */
export function Dialog({ title, wide, children }: FrameProps) {
  const element = useRef<HTMLDialogElement>(null);
  // Before the next key arrives, so that a person can type without waiting for the dialog.
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    firstOf(dialog)?.focus();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? 'wide' : ''}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        closeDialog();
      }}
    >
      <div class="sheet">
        <header>
          <h2 id="dialog-title">{title}</h2>
          <Button icon="close" kind="quiet" label="Close" onClick={closeDialog} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** What a form's work says in a message, with an optional action such as Undo. */
export interface Message {
  text: string;
  action?: Action;
}

/** The outcome of work whose dialog shows its result, and stays open. */
export const STAYS: { stays: true } = { stays: true };

interface FormProps {
  title: string;
  /** The line that does the same as this dialog. */
  command?: string;
  submit: string;
  danger?: boolean;
  disabled?: boolean;
  wide?: boolean;
  /** What the dialog does, as the first words of an error: "Create the volume". */
  what: string;
  /** What the person types before the dialog does something that loses data. */
  confirm?: string;
  /** Does the work. The dialog closes after it, and the message appears. */
  onSubmit: () => Promise<Message | typeof STAYS | undefined>;
  children?: ComponentChildren;
}

/** A dialog with fields. It stays open, with the reason, if what it does fails. */
export function FormDialog(props: FormProps) {
  const { title, command, submit, danger, disabled, wide, what, confirm, onSubmit, children } = props;
  const [typed, setTyped] = useState('');
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const ready = !busy && !disabled && (confirm === undefined || typed === confirm);
  const send = async (event: Event) => {
    event.preventDefault();
    if (!ready) return;
    setBusy(true);
    setError(null);
    try {
      const outcome = await onSubmit();
      if (outcome && 'stays' in outcome) return;
      closeDialog();
      if (outcome) notify(outcome.text, outcome.action);
    } catch (reason) {
      setError(errorText(reason));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} wide={wide}>
      <form onSubmit={send}>
        {children}
        {confirm !== undefined && (
          <TextField label={`Type ${confirm} to confirm`} value={typed} onInput={setTyped} first />
        )}
        {error && <Failure what={`${what} failed.`} error={error} />}
        {command && <LabelledCommand label="As a command" text={command} />}
        <footer>
          <Button onClick={closeDialog}>Cancel</Button>
          <Button type="submit" kind={danger ? 'danger' : 'main'} disabled={!ready}>
            {submit}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** A command under what it is for. */
export function LabelledCommand({ label, text }: { label: string; text: string }) {
  return (
    <div class="stack tight">
      <span class="small soft">{label}</span>
      <Command text={text} />
    </div>
  );
}

/** The last line of a dialog that shows something: other buttons, and the one that closes it. */
export function DoneFooter({ children }: { children?: ComponentChildren }) {
  return (
    <footer>
      {children}
      <Button kind="main" onClick={closeDialog}>
        Done
      </Button>
    </footer>
  );
}
