/** Small parts that many pages share. */

import type { ComponentChildren, TargetedMouseEvent } from 'preact';
import { useRef, useState } from 'preact/hooks';
import { now } from '../lib/clock';
import { localTime, parseTime, relative, utcTime, zoneOffset } from '../lib/time';
import { Icon, type IconName } from './icon';

interface ButtonProps {
  children?: ComponentChildren;
  onClick?: (event: TargetedMouseEvent<HTMLButtonElement>) => void;
  icon?: IconName;
  kind?: 'main' | 'danger' | 'quiet' | 'plain';
  label?: string;
  disabled?: boolean;
  pressed?: boolean;
  type?: 'button' | 'submit';
  tip?: string;
}

/** A button. Without `children` it is an icon, and `label` is its name. */
export function Button({
  children,
  onClick,
  icon,
  kind = 'plain',
  label,
  disabled,
  pressed,
  type = 'button',
  tip,
}: ButtonProps) {
  const round = children === undefined ? 'round' : '';
  return (
    <button
      type={type}
      class={`button ${kind} ${round}`}
      onClick={onClick}
      disabled={disabled}
      aria-label={label}
      aria-pressed={pressed}
      data-tip={tip ?? (round ? label : undefined)}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/**
 * A time relative to now, or to the minute. Pointing at it, or the focus, shows the exact time here
 * and in UTC.
 */
export function Time({ at, still = false }: { at: string | number; still?: boolean }) {
  const time = typeof at === 'number' ? at : parseTime(at);
  const exact = `${localTime(time)} ${zoneOffset(time)}\n${utcTime(time)}`;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the focus shows the exact time, as pointing does
    <time class="nowrap" dateTime={new Date(time).toISOString()} tabIndex={0} data-tip={exact}>
      {still ? localTime(time).replace(/:\d\d$/, '') : relative(time, now.value)}
    </time>
  );
}

export function Badge({ tone, children }: { tone?: 'a' | 'b' | 'full'; children: ComponentChildren }) {
  return <span class={`badge ${tone ?? ''}`}>{children}</span>;
}

/** A share as a bar. The text beside it gives the number. */
export function Meter({ part, whole, label }: { part: number; whole: number; label: string }) {
  const share = whole > 0 ? Math.min(part / whole, 1) : 0;
  return (
    <div class={`meter ${share > 0.85 ? 'b' : ''}`} role="img" aria-label={label}>
      <i style={{ width: `${share * 100}%` }} />
    </div>
  );
}

/** Words of a command. A line breaks between them, and not inside of an option. */
export function Words({ text }: { text: string }) {
  return (
    <>
      {text.split(' ').map((word, index) => (
        <>
          {index > 0 && ' '}
          <span key={index} class="word">
            {word}
          </span>
        </>
      ))}
    </>
  );
}

/** A line of text to copy, such as a command or an address. */
export function Command({ text, label = 'Copy the command' }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const code = useRef<HTMLElement>(null);
  const copy = async () => {
    // A page without TLS has no clipboard. The person copies the selected text then.
    if (!navigator.clipboard) {
      if (code.current) getSelection()?.selectAllChildren(code.current);
      return;
    }
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="command">
      <code ref={code}>
        <Words text={text} />
      </code>
      <Button
        icon={copied ? 'check' : 'copy'}
        kind="quiet"
        label={copied ? 'Copied' : label}
        onClick={copy}
      />
    </div>
  );
}

interface EmptyProps {
  title: string;
  children?: ComponentChildren;
  command?: string;
  action?: ComponentChildren;
}

/** What an empty list shows: what would be here, and the button or command that fills it. */
export function Empty({ title, children, command, action }: EmptyProps) {
  return (
    <div class="empty">
      <h3>{title}</h3>
      {children && <p>{children}</p>}
      {action}
      {command && <Command text={command} />}
    </div>
  );
}

/** The place of text that has not arrived yet. */
export function Skeleton({ lines = 4 }: { lines?: number }) {
  return (
    <div class="inside" aria-busy="true">
      <span class="hidden-text">The console is loading this part.</span>
      {Array.from({ length: lines }, (_, line) => (
        <div key={line} class="skeleton" style={{ width: `${90 - ((line * 23) % 50)}%` }} />
      ))}
    </div>
  );
}

/** An error: what failed, what to do, and a button that tries again. */
export function Failure({ what, error, retry }: { what: string; error: string; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <Icon name="warning" />
      <p>
        <strong>{what}</strong> {error}
      </p>
      {retry && (
        <span class="push">
          <Button onClick={retry}>Try again</Button>
        </span>
      )}
    </div>
  );
}

interface CardProps {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}

export function Card({ title, actions, children }: CardProps) {
  return (
    <section class="card">
      {title && (
        <header>
          <h2>{title}</h2>
          {actions && <div class="line push">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** Names and values. A value of null, undefined or false is left out. */
export function Pairs({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="pairs">
      {of.map(([name, value]) =>
        value === null || value === undefined || value === false
          ? null
          : [<dt key={`${name}-name`}>{name}</dt>, <dd key={name}>{value}</dd>],
      )}
    </dl>
  );
}

/** The head of a page. It also names the browser's tab. */
export function PageHead({
  title,
  children,
  badge,
}: {
  title: string;
  children?: ComponentChildren;
  badge?: ComponentChildren;
}) {
  document.title = `${title} – Hindcast`;
  return (
    <div class="page-head">
      <h1>{title}</h1>
      {badge}
      {children && <div class="line push">{children}</div>}
    </div>
  );
}

export function Labels({ of }: { of: Record<string, string> | undefined }) {
  return (
    <span class="labels">
      {Object.entries(of ?? {}).map(([name, value]) => (
        <Badge key={name}>{value ? `${name}=${value}` : name}</Badge>
      ))}
    </span>
  );
}
