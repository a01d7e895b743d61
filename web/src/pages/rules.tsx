/** The rules of a target in their order: the first rule that matches an initiator decides. */

import type { AccessRule, Unmatched } from '../api/schema';
import { Badge, Button } from '../parts/basics';

const ACCESS = { read_write: 'read and write', read_only: 'read only', denied: 'refused' } as const;

/** Whom a rule is for. */
export function initiatorText({ initiator, address, user, luns }: AccessRule): string {
  const parts = [initiator === '*' ? 'every initiator' : initiator];
  if (address) parts.push(`from ${address}`);
  if (user) parts.push(`as ${user}`);
  if (luns) parts.push(`LUN ${luns.join(', ')} only`);
  return parts.join(' ');
}

interface RuleListProps {
  rules: AccessRule[];
  unmatched: Unmatched;
  /** Moves rule `from` to the place `to`. Without it, the list can't be changed. */
  onMove?: (from: number, to: number) => void;
  onRemove?: (index: number) => void;
}

export function RuleList({ rules, unmatched, onMove, onRemove }: RuleListProps) {
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
            key={`${index}-${initiatorText(rule)}`}
            class="still"
            draggable={Boolean(onMove)}
            onDragStart={(event) => event.dataTransfer?.setData('text/plain', String(index))}
            onDragOver={(event) => onMove && event.preventDefault()}
            onDrop={(event) => drop(event, index)}
          >
            <span class="soft small">{index + 1}</span>
            <Badge tone={rule.access === 'denied' ? 'b' : 'a'}>{ACCESS[rule.access]}</Badge>
            <span class="rule-text">{initiatorText(rule)}</span>
            <span class="push nowrap">
              {onMove && index > 0 && (
                <Button
                  icon="up"
                  kind="quiet"
                  label={`Move rule ${index + 1} up`}
                  onClick={() => onMove(index, index - 1)}
                />
              )}
              {onMove && index < rules.length - 1 && (
                <Button
                  icon="down"
                  kind="quiet"
                  label={`Move rule ${index + 1} down`}
                  onClick={() => onMove(index, index + 1)}
                />
              )}
              {onRemove && (
                <Button
                  icon="close"
                  kind="quiet"
                  label={`Remove rule ${index + 1}`}
                  onClick={() => onRemove(index)}
                />
              )}
            </span>
          </li>
        ))}
      </ol>
      <p class="inside soft">
        An initiator that no rule matches is {unmatched === 'open' ? 'served' : 'refused'}.
      </p>
    </>
  );
}
