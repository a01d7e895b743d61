/** The rules for NBD clients of a volume, or those that the server checks for all volumes. */

import { apiPath } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { NbdAccess, NbdRule } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { Button, Card, Failure, Skeleton } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { RemoveDialog } from '../parts/remove-dialog';
import { NbdRuleDialog } from './nbd-rule';
import { clientText, moveRule, RuleList, unmatchedWord } from './rules';

/** Where rules belong: their route, and how a command names them. */
export interface NbdScope {
  volume?: string;
  path: string;
  /** The volume, or `--all`. */
  word: string;
  text: string;
}

export function nbdScope(volume?: string): NbdScope {
  return volume
    ? { volume, path: apiPath`/volumes/${volume}/nbd-access`, word: volume, text: volume }
    : { path: '/nbd-access', word: '--all', text: 'all volumes' };
}

function RemoveRuleDialog({ scope, number, rule }: { scope: NbdScope; number: number; rule: NbdRule }) {
  return (
    <RemoveDialog
      verb="Remove"
      object={`NBD rule ${number} of ${scope.text}`}
      path={`${scope.path}/rules/${number}`}
      changes={[scope.path, '/clients']}
      command={hindcast('access', 'remove', scope.word, '--nbd', '--rule', String(number))}
      done={`Rule ${number} of ${scope.text} was removed.`}
    >
      <p>The rule is for {clientText(rule)}.</p>
      <p class="warning-text">
        {rule.access === 'denied'
          ? 'The rules below it decide about these clients from now on.'
          : 'Connections that no other rule allows end.'}
      </p>
    </RemoveDialog>
  );
}

export function NbdRules({ volume }: { volume?: string }) {
  const scope = nbdScope(volume);
  const { data, error, reload: again } = useResource<NbdAccess | NbdAccess[]>(scope.path);
  // The list of all rules begins with those for all volumes.
  const access = Array.isArray(data) ? data.find((of) => !of.volume) : data;
  return (
    <Card
      title={volume ? 'NBD rules' : 'NBD rules for all volumes'}
      actions={
        may('admin') && (
          <Button
            icon="plus"
            label={volume ? undefined : 'Add a rule for NBD to all volumes'}
            onClick={() => openDialog(<NbdRuleDialog scope={scope} />)}
          >
            Add a rule
          </Button>
        )
      }
    >
      {error && !data && <Failure what="The rules could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton />}
      {access && <Rules scope={scope} access={access} />}
    </Card>
  );
}

function Rules({ scope, access }: { scope: NbdScope; access: NbdAccess }) {
  const { rules, unmatched, unmatched_on_loopback: local, warnings } = access;
  const move = (from: number, to: number) =>
    attempt('Moving the rule', async () => {
      await moveRule(`${scope.path}/rules`, rules, from, to);
      await reload(scope.path);
    });
  const drop = (index: number) => {
    const rule = rules[index];
    if (rule) openDialog(<RemoveRuleDialog scope={scope} number={index + 1} rule={rule} />);
  };
  const admin = may('admin');
  return (
    <>
      {warnings?.map((warning) => (
        <p key={warning} class="inside">
          <span class="warning-text">{warning}</span>
        </p>
      ))}
      <RuleList
        rules={rules}
        textOf={clientText}
        onMove={admin ? move : undefined}
        onRemove={admin ? drop : undefined}
      >
        {scope.volume ? (
          <>
            After these rules the server checks <a href="/targets">those for all volumes</a>. A client that no
            rule matches is {unmatchedWord(unmatched)}. On this machine it is {unmatchedWord(local)}.
          </>
        ) : (
          'The server checks these rules after those of the volume.'
        )}
      </RuleList>
    </>
  );
}
