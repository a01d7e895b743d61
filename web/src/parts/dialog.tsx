/** Dialogs. One is open at a time; when it closes, the focus returns to what opened it. */

import { signal } from '@preact/signals';
import type { ComponentChildren, VNode } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { errorText } from '../api/client';
import { Button, Command, Failure } from './basics';

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
    else document.querySelector<HTMLElement>('main')?.focus();
  });
}

export const isDialogOpen = () => open.value !== null;

/** The place of the open dialog in the page. */
export function DialogHost() {
  return open.value;
}

interface FrameProps {
  title: string;
  wide?: boolean;
  children: ComponentChildren;
}

/** A modal dialog with a title and a close button. Escape closes it. */
export function Dialog({ title, wide, children }: FrameProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    dialog?.querySelector<HTMLElement>('[data-first]')?.focus();
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
  onSubmit: () => Promise<void>;
  children?: ComponentChildren;
}

/** A dialog with fields. It stays open, with the reason, if what it does fails. */
export function FormDialog({
  title,
  command,
  submit,
  danger,
  disabled,
  wide,
  what,
  onSubmit,
  children,
}: FormProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const send = async (event: Event) => {
    event.preventDefault();
    if (busy || disabled) return;
    setBusy(true);
    setError(null);
    try {
      await onSubmit();
    } catch (reason) {
      setError(errorText(reason));
    }
    setBusy(false);
  };
  return (
    <Dialog title={title} wide={wide}>
      <form onSubmit={send}>
        {children}
        {error && <Failure what={`${what} failed.`} error={error} />}
        {command && <AsCommand text={command} />}
        <footer>
          <Button onClick={closeDialog}>Cancel</Button>
          <Button type="submit" kind={danger ? 'danger' : 'main'} disabled={busy || disabled}>
            {submit}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function AsCommand({ text }: { text: string }) {
  return (
    <div class="stack tight">
      <span class="small soft">As a command</span>
      <Command text={text} />
    </div>
  );
}
