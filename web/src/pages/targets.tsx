/** iSCSI targets: LUNs, rules in their order, sessions. */

import { apiPath, patch, post, query, remove } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Target } from '../api/schema';
import { may } from '../api/session';
import { bytes, plural } from '../lib/format';
import { duration } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, PageHead, Skeleton } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { parameters, volumePath } from '../router';
import { RuleList } from './rules';
import {
  AddLunDialog,
  AddRuleDialog,
  ChapDialog,
  CreateTargetDialog,
  DeleteTargetDialog,
} from './target-dialogs';

export function TargetsPage() {
  const { data, error, reload: again } = useResource<Target[]>('/targets', 10);
  const only = parameters.value.get('name');
  const shown = data?.filter(({ name }) => !only || name === only);
  return (
    <>
      <PageHead title="Targets">
        {only && <a href="/targets">Show all targets</a>}
        {may('admin') && (
          <Button icon="plus" kind="main" onClick={() => openDialog(<CreateTargetDialog />)}>
            Create a target
          </Button>
        )}
      </PageHead>
      {error && !data && <Failure what="The targets could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton lines={8} />}
      {shown?.length === 0 && (
        <Card>
          <Empty title="No targets" command="hindcast target create shop">
            An iSCSI initiator logs in to a target, and finds volumes there as LUNs. Each volume has a target
            of its own while iSCSI is served.
          </Empty>
        </Card>
      )}
      {shown?.map((target) => (
        <TargetCard key={target.name} target={target} />
      ))}
    </>
  );
}

function change(what: string, run: () => Promise<unknown>): Promise<void> {
  return attempt(what, async () => {
    await run();
    await reload('/targets');
  });
}

/**
 * Moves a rule. The API has no move, so this adds the rule at its new place before it removes the
 * old one: at no time is an initiator without the rule.
 */
async function moveRule(target: Target, from: number, to: number): Promise<void> {
  const rule = target.rules[from];
  if (!rule) return;
  const rules = apiPath`/targets/${target.name}/rules`;
  await post(rules, { ...rule, at: (to > from ? to + 1 : to) + 1 });
  await remove(`${rules}/${(to > from ? from : from + 1) + 1}`);
}

function TargetCard({ target }: { target: Target }) {
  const path = apiPath`/targets/${target.name}`;
  const admin = may('admin');
  const actions = admin && (
    <>
      <Button onClick={() => openDialog(<ChapDialog target={target.name} />)}>CHAP</Button>
      <Button onClick={() => change('Changing the target', () => patch(path, { enabled: !target.enabled }))}>
        {target.enabled ? 'Disable' : 'Enable'}
      </Button>
      {!target.volume && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete the target ${target.name}`}
          onClick={() =>
            openDialog(<DeleteTargetDialog name={target.name} sessions={target.sessions.length} />)
          }
        />
      )}
    </>
  );
  return (
    <Card
      title={
        <span class="line">
          <span class="target-name">{target.name}</span>
          {target.alias && <span class="soft small">{target.alias}</span>}
          {!target.enabled && <Badge tone="b">disabled</Badge>}
          {target.chap && (
            <Badge>CHAP as {[target.chap.user, ...(target.chap.others ?? [])].join(', ')}</Badge>
          )}
        </span>
      }
      actions={actions}
    >
      {target.warnings?.map((warning) => (
        <p key={warning} class="inside">
          <span class="warning-text">{warning}</span>
        </p>
      ))}
      <div class="target-parts">
        <Luns target={target} />
        <section>
          <div class="line part-head">
            <h3>Rules</h3>
            {admin && (
              <span class="push">
                <Button
                  icon="plus"
                  kind="quiet"
                  label={`Add a rule to ${target.name}`}
                  onClick={() => openDialog(<AddRuleDialog target={target.name} />)}
                />
              </span>
            )}
          </div>
          <RuleList
            rules={target.rules}
            unmatched={target.unmatched}
            onMove={
              admin ? (from, to) => change('Moving the rule', () => moveRule(target, from, to)) : undefined
            }
            onRemove={
              admin
                ? (index) => change('Removing the rule', () => remove(`${path}/rules/${index + 1}`))
                : undefined
            }
          />
        </section>
        <Sessions target={target} />
      </div>
    </Card>
  );
}

function Luns({ target }: { target: Target }) {
  const admin = may('admin') && !target.volume;
  const drop = (lun: number) =>
    change('Removing the LUN', () =>
      remove(apiPath`/targets/${target.name}/luns/${lun}` + query({ force: undefined })),
    );
  return (
    <section>
      <div class="line part-head">
        <h3>LUNs</h3>
        {admin && (
          <span class="push">
            <Button
              icon="plus"
              kind="quiet"
              label={`Add a LUN to ${target.name}`}
              onClick={() => openDialog(<AddLunDialog target={target.name} />)}
            />
          </span>
        )}
      </div>
      <ul class="list">
        {target.luns.map(({ lun, source, size, backing, read_only, error }) => (
          <li key={lun} class="still">
            <span class="soft">{lun}</span>
            {backing === 'volume' ? <a href={volumePath(source)}>{source}</a> : <span>{source}</span>}
            <span class="soft">{size !== null && size !== undefined && bytes(size)}</span>
            {read_only && <Badge>read-only</Badge>}
            {error && <Badge tone="full">{error}</Badge>}
            {admin && (
              <span class="push">
                <Button icon="close" kind="quiet" label={`Remove LUN ${lun}`} onClick={() => drop(lun)} />
              </span>
            )}
          </li>
        ))}
      </ul>
      {target.luns.length === 0 && <p class="inside soft">The target has no LUN.</p>}
    </section>
  );
}

function Sessions({ target }: { target: Target }) {
  return (
    <section>
      <div class="line part-head">
        <h3>{plural(target.sessions.length, 'session')}</h3>
      </div>
      <ul class="list">
        {target.sessions.map((session) => (
          <li key={`${session.initiator}-${session.tsih}-${session.isid}`}>
            <span class="rule-text">{session.initiator}</span>
            <span class="soft small">
              {session.addresses.join(', ')}, for {duration(session.age * 1000)}, {bytes(session.read_bytes)}{' '}
              read, {bytes(session.write_bytes)} written
            </span>
          </li>
        ))}
      </ul>
      {target.sessions.length === 0 && <p class="inside soft">No initiator is logged in.</p>}
    </section>
  );
}
