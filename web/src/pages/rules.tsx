/** Rules in their order: the first rule that matches a client decides. */

import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { post, remove } from '../api/client';
import type { Access, AccessRule, NbdRule, Unmatched } from '../api/schema';
import { Badge, Button } from '../parts/basics';

const ACCESS: Record<Access, string> = {
  read_write: 'read and write',
  read_only: 'read only',
  denied: 'refused',
};

/** Whom a rule of a target is for. */
export function initiatorText({ initiator, address, user, luns }: AccessRule): string {
  const parts = [initiator === '*' ? 'every initiator' : initiator];
  if (address) parts.push(`from ${address}`);
  if (user) parts.push(`as ${user}`);
  if (luns) parts.push(`LUN ${luns.join(', ')} only`);
  return parts.join(' ');
}

/** Whom a rule of NBD is for. */
export function clientText({ addresses, certificate }: NbdRule): string {
  const who = addresses.length > 0 ? addresses.join(', ') : 'every address';
  return certificate ? `${who} with a certificate of ${certificate}` : who;
}

export const unmatchedWord = (unmatched: Unmatched) => (unmatched === 'open' ? 'served' : 'refused');

/**
 * Moves a rule. The API has no move, so this adds the rule at its new place before it removes the
 * old one: at no time is a client without the rule. `path` is the route of the rules.
 */
export async function moveRule(path: string, rules: object[], from: number, to: number): Promise<void> {
  const rule = rules[from];
  if (!rule) return;
  await post(path, { ...rule, at: (to > from ? to + 1 : to) + 1 });
  await remove(`${path}/${(to > from ? from : from + 1) + 1}`);
}

/** A name for each rule that stays when the rules change their order. Equal rules are counted. */
export function ruleKeys(texts: string[]): string[] {
  const seen = new Map<string, number>();
  return texts.map((text) => {
    const count = seen.get(text) ?? 0;
    seen.set(text, count + 1);
    return `${text}-${count}`;
  });
}

interface RuleListProps<T> {
  rules: T[];
  textOf: (rule: T) => string;
  /** What happens to a client that no rule matches. */
  children: ComponentChildren;
  /** Moves rule `from` to the place `to`. Without it, the list can't be changed. */
  onMove?: (from: number, to: number) => Promise<void>;
  onRemove?: (index: number) => void;
}

/** A rule that a button moved, and where it should be now. */
interface Moved {
  key: string | undefined;
  up: boolean;
}

/**
 * Gives the focus back to the button of a rule that it moved, as the row of the rule is somewhere
 * else now. At the end of the list only the button for the other direction is left.
 */
function focusMoved(list: HTMLElement | null, { key, up }: Moved): void {
  const row = [...(list?.children ?? [])].find((child) => child.getAttribute('data-rule') === key);
  const buttons = [...(row?.querySelectorAll<HTMLElement>('[data-move]') ?? [])];
  const same = buttons.find((button) => button.getAttribute('data-move') === (up ? 'up' : 'down'));
  (same ?? buttons[0])?.querySelector('button')?.focus();
}

export function RuleList<T extends { access: Access }>(props: RuleListProps<T>) {
  const { rules, textOf, children, onMove, onRemove } = props;
  const list = useRef<HTMLOListElement>(null);
  const [moved, setMoved] = useState<Moved | null>(null);
  useLayoutEffect(() => {
    if (moved) focusMoved(list.current, moved);
  }, [moved]);
  const keys = ruleKeys(rules.map((rule) => `${rule.access} ${textOf(rule)}`));
  const drop = (event: DragEvent, to: number) => {
    event.preventDefault();
    const from = Number(event.dataTransfer?.getData('text/plain'));
    if (Number.isInteger(from) && from !== to) void onMove?.(from, to);
  };
  const press = async (from: number, to: number) => {
    await onMove?.(from, to);
    setMoved({ key: keys[from], up: to < from });
  };
  return (
    <>
      <ol class="list rules" ref={list}>
        {rules.map((rule, index) => (
          <li
            key={keys[index]}
            data-rule={keys[index]}
            class="still"
            draggable={Boolean(onMove)}
            onDragStart={(event) => event.dataTransfer?.setData('text/plain', String(index))}
            onDragOver={(event) => onMove && event.preventDefault()}
            onDrop={(event) => drop(event, index)}
          >
            <span class="soft small">{index + 1}</span>
            <Badge tone={rule.access === 'denied' ? 'b' : 'a'}>{ACCESS[rule.access]}</Badge>
            <span class="rule-text">{textOf(rule)}</span>
            <span class="push nowrap">
              <RuleButtons
                index={index}
                last={rules.length - 1}
                onMove={onMove && press}
                onRemove={onRemove}
              />
            </span>
          </li>
        ))}
      </ol>
      <p class="inside soft">{children}</p>
    </>
  );
}

interface ButtonsProps {
  index: number;
  last: number;
  onMove?: (from: number, to: number) => Promise<void>;
  onRemove?: (index: number) => void;
}

function RuleButtons({ index, last, onMove, onRemove }: ButtonsProps) {
  const number = index + 1;
  return (
    <>
      {onMove && index > 0 && (
        <span data-move="up">
          <Button
            icon="up"
            kind="quiet"
            label={`Move rule ${number} up`}
            onClick={() => void onMove(index, index - 1)}
          />
        </span>
      )}
      {onMove && index < last && (
        <span data-move="down">
          <Button
            icon="down"
            kind="quiet"
            label={`Move rule ${number} down`}
            onClick={() => void onMove(index, index + 1)}
          />
        </span>
      )}
      {onRemove && (
        <Button icon="close" kind="quiet" label={`Remove rule ${number}`} onClick={() => onRemove(index)} />
      )}
    </>
  );
}
