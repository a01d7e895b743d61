/** Dialogs that create, change and delete groups, and the choice of volumes that they share. */

import { useState } from 'preact/hooks';
import { apiPath, patch, post } from '../api/client';
import { reload, useResource } from '../api/resource';
import type { Group, Volume } from '../api/schema';
import { hindcast } from '../lib/command';
import { FormDialog } from '../parts/dialog';
import { CheckField, TextField, useName } from '../parts/fields';
import { RemoveDialog } from '../parts/remove-dialog';

interface ChoiceProps {
  legend: string;
  names: string[];
  chosen: string[];
  onChange: (names: string[]) => void;
}

/** A choice of any number of names, in the order in which they were chosen. */
export function NameChoice({ legend, names, chosen, onChange }: ChoiceProps) {
  return (
    <fieldset class="field">
      <legend>{legend}</legend>
      <div class="volume-choice">
        {names.map((name) => (
          <CheckField
            key={name}
            label={name}
            checked={chosen.includes(name)}
            onInput={(checked) =>
              onChange(checked ? [...chosen, name] : chosen.filter((other) => other !== name))
            }
          />
        ))}
      </div>
    </fieldset>
  );
}

export function VolumeChoice({ chosen, onChange }: Pick<ChoiceProps, 'chosen' | 'onChange'>) {
  const volumes = useResource<Volume[]>('/volumes').data ?? [];
  const names = volumes.map(({ name }) => name);
  return <NameChoice legend="Volumes" names={names} chosen={chosen} onChange={onChange} />;
}

export function CreateGroupDialog() {
  const { name, valid, field } = useName();
  const [volumes, setVolumes] = useState<string[]>([]);
  const submit = async () => {
    await post('/groups', { name, volumes });
    await reload('/groups');
    return undefined;
  };
  return (
    <FormDialog
      title="Create a group"
      what="Creating the group"
      command={hindcast('group', 'create', name || 'NAME', ...(volumes.length > 0 ? volumes : ['VOLUME']))}
      submit="Create"
      disabled={!valid || volumes.length === 0}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} />
      <VolumeChoice chosen={volumes} onChange={setVolumes} />
    </FormDialog>
  );
}

/** Adds volumes at the end of a group, and takes others out of it. */
export function ChangeGroupDialog({ group: { name, volumes } }: { group: Group }) {
  const [chosen, setChosen] = useState(volumes);
  const add = chosen.filter((volume) => !volumes.includes(volume));
  const remove = volumes.filter((volume) => !chosen.includes(volume));
  const submit = async () => {
    await patch(apiPath`/groups/${name}`, { add, remove });
    await Promise.all([reload('/groups'), reload('/schedules')]);
    return { text: `Group ${name} has ${chosen.join(', ')}.` };
  };
  const commands = [
    add.length > 0 && hindcast('group', 'add', name, ...add),
    remove.length > 0 && hindcast('group', 'remove', name, ...remove),
  ].filter(Boolean);
  return (
    <FormDialog
      title={`Volumes of the group ${name}`}
      what="Changing the group"
      command={commands.join(' && ') || hindcast('group', 'add', name, 'VOLUME')}
      submit="Change"
      disabled={chosen.length === 0 || add.length + remove.length === 0}
      onSubmit={submit}
    >
      <p class="soft">
        Each run of a schedule of this group takes the volumes that the group has then. A volume that leaves
        the group keeps its snapshots.
      </p>
      <VolumeChoice chosen={chosen} onChange={setChosen} />
    </FormDialog>
  );
}

export function DeleteGroupDialog({ name }: { name: string }) {
  return (
    <RemoveDialog
      verb="Delete"
      object={`the group ${name}`}
      path={apiPath`/groups/${name}`}
      changes={['/groups']}
      command={hindcast('group', 'delete', name)}
      done={`Group ${name} was deleted.`}
    >
      <p>Its volumes and their snapshots stay.</p>
    </RemoveDialog>
  );
}
