/** iSCSI targets: LUNs, rules in their order, accounts, sessions; and the rules for everything. */

import { apiPath, patch } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Chap, Lun, Target, TargetDefaults } from '../api/schema';
import { may } from '../api/session';
import { bytes, plural } from '../lib/format';
import { duration } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, PageHead, Skeleton } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { parameters, volumePath } from '../router';
import { accountsOf, ChapDialog } from './chap-dialogs';
import { AddLunDialog, RemoveLunDialog } from './lun-dialogs';
import { NbdRules } from './nbd-rules';
import { CreateTargetDialog, DeleteTargetDialog, DisableTargetDialog } from './target-dialogs';
import { TargetRules } from './target-rules';
import { targetScope } from './target-scope';

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
      {!only && <Defaults />}
      {!only && <NbdRules />}
    </>
  );
}

function TargetCard({ target }: { target: Target }) {
  const scope = targetScope(target.name);
  return (
    <Card
      title={
        <span class="line">
          <span class="target-name">{target.name}</span>
          {target.alias && <span class="soft small">{target.alias}</span>}
          {!target.enabled && <Badge tone="b">disabled</Badge>}
          {target.chap && <ChapBadge chap={target.chap} />}
        </span>
      }
      actions={may('admin') && <TargetActions target={target} />}
    >
      {target.warnings?.map((warning) => (
        <p key={warning} class="inside">
          <span class="warning-text">{warning}</span>
        </p>
      ))}
      <div class="target-parts">
        <Luns target={target} />
        <TargetRules scope={scope} rules={target.rules} unmatched={target.unmatched} />
        <Sessions target={target} />
      </div>
    </Card>
  );
}

function ChapBadge({ chap }: { chap: Chap }) {
  return (
    <Badge>
      CHAP as {accountsOf(chap).join(', ')}
      {chap.mutual_user && `, mutual as ${chap.mutual_user}`}
    </Badge>
  );
}

function TargetActions({ target }: { target: Target }) {
  const { name, chap, enabled, sessions, volume } = target;
  const enable = () =>
    attempt('Enabling the target', async () => {
      await patch(apiPath`/targets/${name}`, { enabled: true });
      await reload('/targets');
    });
  const disable = () => openDialog(<DisableTargetDialog name={name} sessions={sessions.length} />);
  return (
    <>
      <Button
        label={`CHAP of ${name}`}
        onClick={() => openDialog(<ChapDialog scope={targetScope(name)} chap={chap} />)}
      >
        CHAP
      </Button>
      <Button label={`${enabled ? 'Disable' : 'Enable'} ${name}`} onClick={enabled ? disable : enable}>
        {enabled ? 'Disable' : 'Enable'}
      </Button>
      {!volume && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete the target ${name}`}
          onClick={() => openDialog(<DeleteTargetDialog name={name} sessions={sessions.length} />)}
        />
      )}
    </>
  );
}

/** The rules and accounts that hold for every target, after its own. */
function Defaults() {
  const { data, error, reload: again } = useResource<TargetDefaults>('/target-defaults', 30);
  const scope = targetScope();
  const chap = may('admin') && data && (
    <Button
      label="CHAP of all targets"
      onClick={() => openDialog(<ChapDialog scope={scope} chap={data.chap} />)}
    >
      CHAP
    </Button>
  );
  return (
    <Card
      title={
        <span class="line">
          All targets <span class="soft small">checked after the rules of each target</span>
          {data?.chap && <ChapBadge chap={data.chap} />}
        </span>
      }
      actions={chap}
    >
      {error && !data && <Failure what="The defaults could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton lines={2} />}
      {data && <TargetRules scope={scope} rules={data.rules} unmatched={data.unmatched} />}
    </Card>
  );
}

function Luns({ target }: { target: Target }) {
  const admin = may('admin') && !target.volume;
  const drop = (lun: Lun) =>
    openDialog(<RemoveLunDialog target={target.name} lun={lun} sessions={target.sessions.length} />);
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
        {target.luns.map((lun) => (
          <li key={lun.lun} class="still">
            <LunText lun={lun} />
            {admin && (
              <span class="push">
                <Button
                  icon="close"
                  kind="quiet"
                  label={`Remove LUN ${lun.lun} of ${target.name}`}
                  onClick={() => drop(lun)}
                />
              </span>
            )}
          </li>
        ))}
      </ul>
      {target.luns.length === 0 && <p class="inside soft">The target has no LUN.</p>}
    </section>
  );
}

function LunText({ lun: { lun, source, size, backing, read_only, error } }: { lun: Lun }) {
  return (
    <>
      <span class="soft">{lun}</span>
      {backing === 'volume' ? <a href={volumePath(source)}>{source}</a> : <span>{source}</span>}
      <span class="soft">{size !== null && size !== undefined && bytes(size)}</span>
      {read_only && <Badge>read-only</Badge>}
      {error && <Badge tone="full">{error}</Badge>}
    </>
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
