/** The groups of volumes, and what can be done with all volumes of one at an instant. */

import { useResource } from '../api/resource';
import type { Group } from '../api/schema';
import { may } from '../api/session';
import { Button, Card, Empty, Failure, Skeleton } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { volumePath } from '../router';
import { ChangeGroupDialog, DeleteGroupDialog } from './group-dialogs';
import { GroupRollBackDialog, GroupSnapshotDialog, MarkGroupDialog } from './group-moments';

export function VolumeLinks({ names }: { names: string[] }) {
  return (
    <span class="line">
      {names.map((name) => (
        <a key={name} href={volumePath(name)}>
          {name}
        </a>
      ))}
    </span>
  );
}

export function Groups() {
  const { data, error, reload: again } = useResource<Group[]>('/groups');
  return (
    <Card title="Groups">
      {error && !data && <Failure what="The groups could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton />}
      {data?.length === 0 && (
        <Empty title="No groups" command="hindcast group create shop db log">
          A group names volumes that belong together, so that one command takes them all at one instant.
        </Empty>
      )}
      <ul class="list">
        {data?.map((group) => (
          <li key={group.name} class="still group">
            <strong>{group.name}</strong>
            <VolumeLinks names={group.volumes} />
            <span class="push line">
              <GroupActions group={group} />
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function GroupActions({ group }: { group: Group }) {
  const { name } = group;
  return (
    <>
      {may('operator') && (
        <>
          <Button
            icon="camera"
            kind="quiet"
            label={`Take a snapshot of ${name}`}
            onClick={() => openDialog(<GroupSnapshotDialog group={group} />)}
          />
          <Button
            icon="flag"
            kind="quiet"
            label={`Mark the present of ${name}`}
            onClick={() => openDialog(<MarkGroupDialog group={group} />)}
          />
        </>
      )}
      {may('admin') && (
        <Button
          icon="back"
          kind="quiet"
          label={`Roll back ${name}`}
          onClick={() => openDialog(<GroupRollBackDialog group={group} />)}
        />
      )}
      {may('operator') && (
        <Button
          label={`Change the volumes of ${name}`}
          onClick={() => openDialog(<ChangeGroupDialog group={group} />)}
        >
          Change
        </Button>
      )}
      {may('admin') && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete the group ${name}`}
          onClick={() => openDialog(<DeleteGroupDialog name={name} />)}
        />
      )}
    </>
  );
}
