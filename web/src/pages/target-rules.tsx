/** The rules of a target, or those for all targets, and the dialogs that change them. */

import { useState } from 'preact/hooks';
import { post } from '../api/client';
import { reload } from '../api/resource';
import type { Access, AccessRule, Unmatched } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { Button } from '../parts/basics';
import { FormDialog, openDialog } from '../parts/dialog';
import { placeOf, SelectField, TextField } from '../parts/fields';
import { attempt } from '../parts/notices';
import { RemoveDialog } from '../parts/remove-dialog';
import { initiatorText, moveRule, RuleList, unmatchedWord } from './rules';
import type { TargetScope } from './target-scope';

interface RulesProps {
  scope: TargetScope;
  rules: AccessRule[];
  unmatched: Unmatched;
}

export function TargetRules({ scope, rules, unmatched }: RulesProps) {
  const admin = may('admin');
  const move = (from: number, to: number) =>
    attempt('Moving the rule', async () => {
      await moveRule(`${scope.path}/rules`, rules, from, to);
      await reload(scope.changes);
    });
  const drop = (index: number) => {
    const rule = rules[index];
    if (rule) openDialog(<RemoveRuleDialog scope={scope} number={index + 1} rule={rule} />);
  };
  return (
    <section>
      <div class="line part-head">
        <h3>Rules</h3>
        {admin && (
          <span class="push">
            <Button
              icon="plus"
              kind="quiet"
              label={`Add a rule to ${scope.text}`}
              onClick={() => openDialog(<AddRuleDialog scope={scope} />)}
            />
          </span>
        )}
      </div>
      <RuleList
        rules={rules}
        textOf={initiatorText}
        onMove={admin ? move : undefined}
        onRemove={admin ? drop : undefined}
      >
        An initiator that no rule matches is {unmatchedWord(unmatched)}.
      </RuleList>
    </section>
  );
}

interface RemoveProps {
  scope: TargetScope;
  number: number;
  rule: AccessRule;
}

function RemoveRuleDialog({ scope, number, rule }: RemoveProps) {
  return (
    <RemoveDialog
      verb="Remove"
      object={`rule ${number} of ${scope.text}`}
      path={`${scope.path}/rules/${number}`}
      changes={[scope.changes]}
      command={hindcast('target', 'disallow', scope.word, '--rule', String(number))}
      done={`Rule ${number} of ${scope.text} was removed.`}
    >
      <p>The rule is for {initiatorText(rule)}.</p>
      <p class="warning-text">
        {rule.access === 'denied'
          ? 'The rules below it decide about these initiators from now on.'
          : 'Sessions that no other rule allows end, and their initiators lose the LUNs.'}
      </p>
    </RemoveDialog>
  );
}

/** The numbers of LUNs that a person typed. Null: it is no list of numbers. */
function lunsOf(text: string): number[] | null {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  return parts.every((part) => /^\d{1,5}$/.test(part) && Number(part) <= 16_383) ? parts.map(Number) : null;
}

const INITIATORS_MAY: [Access, string][] = [
  ['read_write', 'Read and write'],
  ['read_only', 'Read only'],
  ['denied', 'Not log in'],
];

function AddRuleDialog({ scope }: { scope: TargetScope }) {
  const [access, setAccess] = useState<Access>('read_write');
  const [texts, setTexts] = useState({ initiator: '', address: '', user: '', luns: '', place: '' });
  const { initiator, address, user, luns: lunText, place } = texts;
  const denied = access === 'denied';
  const luns = denied ? [] : lunsOf(lunText);
  const at = placeOf(place);
  const submit = async () => {
    await post(`${scope.path}/rules`, {
      access,
      initiator: initiator || '*',
      address: address || undefined,
      user: user || undefined,
      luns: luns?.length ? luns : undefined,
      at,
    });
    await reload(scope.changes);
    return undefined;
  };
  const field = (name: keyof typeof texts) => ({
    value: texts[name],
    onInput: (value: string) => setTexts({ ...texts, [name]: value }),
  });
  return (
    <FormDialog
      title={`Add a rule to ${scope.text}`}
      what="Adding the rule"
      command={hindcast(
        ...['target', denied ? 'deny' : 'allow', scope.word, '--initiator', initiator || '*'],
        ...(address ? ['--address', address] : []),
        ...(user ? ['--user', user] : []),
        ...(luns ?? []).flatMap((lun) => ['--lun', String(lun)]),
        access === 'read_only' && '--read-only',
        ...(at ? ['--at', String(at)] : []),
      )}
      submit="Add the rule"
      disabled={initiator + address + user === '' || luns === null || at === null}
      onSubmit={submit}
    >
      <SelectField label="Initiators may" value={access} onInput={setAccess} options={INITIATORS_MAY} />
      <TextField
        label="Initiator"
        {...field('initiator')}
        hint="A name. * matches any text, ? one character. Empty: every initiator"
        first
      />
      <TextField
        label="Address"
        {...field('address')}
        hint="An address or a range such as 10.0.0.0/8. Empty: every address"
      />
      <TextField
        label="CHAP account"
        {...field('user')}
        hint="The account that the initiator must have proven. Empty: any, or none"
      />
      <div class="columns">
        {!denied && <TextField label="LUNs" {...field('luns')} hint="Such as 0, 2. Empty: all" />}
        <TextField label="Place" {...field('place')} hint="1 is the first. Empty: the last" />
      </div>
    </FormDialog>
  );
}
