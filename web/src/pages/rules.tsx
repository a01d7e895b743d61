/** Rules in their order: the first rule that matches a client decides. */

import type { ComponentChildren } from 'preact';
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

interface RuleListProps<T> {
  rules: T[];
  textOf: (rule: T) => string;
  /** What happens to a client that no rule matches. */
  children: ComponentChildren;
  /** Moves rule `from` to the place `to`. Without it, the list can't be changed. */
  onMove?: (from: number, to: number) => void;
  onRemove?: (index: number) => void;
}

export function RuleList<T extends { access: Access }>(props: RuleListProps<T>) {
  const { rules, textOf, children, onMove, onRemove } = props;
  const drop = (event: DragEvent, to: number) => {
    event.preventDefault();
    const from = Number(event.dataTransfer?.getData('text/plain'));
    if (Number.isInteger(from) && from !== to) onMove?.(from, to);
  };
  return (
    <>
      <ol class="list rules">
        {rules.map((rule, index) => (
          <li
            key={`${index}-${textOf(rule)}`}
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
              <RuleButtons index={index} last={rules.length - 1} onMove={onMove} onRemove={onRemove} />
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
  onMove?: (from: number, to: number) => void;
  onRemove?: (index: number) => void;
}

function RuleButtons({ index, last, onMove, onRemove }: ButtonsProps) {
  const number = index + 1;
  return (
    <>
      {onMove && index > 0 && (
        <Button
          icon="up"
          kind="quiet"
          label={`Move rule ${number} up`}
          onClick={() => onMove(index, index - 1)}
        />
      )}
      {onMove && index < last && (
        <Button
          icon="down"
          kind="quiet"
          label={`Move rule ${number} down`}
          onClick={() => onMove(index, index + 1)}
        />
      )}
      {onRemove && (
        <Button icon="close" kind="quiet" label={`Remove rule ${number}`} onClick={() => onRemove(index)} />
      )}
    </>
  );
}
