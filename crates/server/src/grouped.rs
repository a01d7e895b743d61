//! Requests about groups: their creation, changes and lists.

use crate::app::App;
use crate::groups::{check_name, not_found};
use hindcast_api::{CreateGroup, Group, PatchGroup};
use hindcast_engine::pool::VolumeInfo;
use hindcast_engine::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use uuid::Uuid;

impl App {
    /// Returns all groups, sorted by name.
    pub(crate) fn list_groups(&self) -> Result<Vec<Group>> {
        let all = self.groups.all()?;
        let names = self.names_of_volumes();
        Ok(all.into_iter().map(|(name, volumes)| shown(name, &volumes, &names)).collect())
    }

    /// Returns one group.
    pub(crate) fn group(&self, name: &str) -> Result<Group> {
        let volumes = self.groups.get(name)?;
        Ok(shown(name.to_owned(), &volumes, &self.names_of_volumes()))
    }

    /// Creates a group. Its name must not be that of a volume, because both stand in the same place
    /// of a command.
    pub(crate) fn create_group(&self, new: &CreateGroup) -> Result<Group> {
        check_name(&new.name)?;
        if self.pool.volume(&new.name).is_ok() {
            return Err(taken(&new.name, "a volume has that name"));
        }
        let volumes = self.identities(&new.volumes)?;
        self.groups.update(|all| {
            if all.contains_key(&new.name) {
                return Err(taken(&new.name, "it exists already"));
            }
            all.insert(new.name.clone(), volumes);
            Ok(())
        })?;
        self.group(&new.name)
    }

    /// Adds volumes to a group, at its end, and removes others.
    pub(crate) fn patch_group(&self, name: &str, patch: &PatchGroup) -> Result<Group> {
        let (added, removed) = (self.identities(&patch.add)?, self.identities(&patch.remove)?);
        self.groups.update(|all| {
            let known = self.known_volumes();
            let volumes = all.get_mut(name).ok_or_else(|| not_found(name))?;
            if let Some(missing) = removed.iter().position(|id| !volumes.contains(id)) {
                let volume = patch.remove.get(missing).map_or("", String::as_str);
                let text = format!("remove {volume} from group {name}: it is not in the group");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            // Volumes that were deleted for good leave the group with its next change.
            volumes.retain(|id| !removed.contains(id) && known.contains(id));
            volumes.extend(added.iter().filter(|id| !removed.contains(id)));
            Ok(())
        })?;
        self.group(name)
    }

    /// Deletes a group. Its volumes stay. Fails if a schedule takes snapshots of the group.
    pub(crate) fn delete_group(&self, name: &str) -> Result<()> {
        if let Some(schedule) = self.schedules.of_group(name) {
            let text =
                format!("delete group {name}: schedule {schedule} takes snapshots of it; delete that first");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        self.groups.update(|all| all.remove(name).map(drop).ok_or_else(|| not_found(name)))
    }

    fn identities(&self, volumes: &[String]) -> Result<Vec<Uuid>> {
        volumes.iter().map(|name| Ok(self.pool.volume(name)?.uuid)).collect()
    }

    fn names_of_volumes(&self) -> BTreeMap<Uuid, String> {
        self.pool.volumes().into_iter().map(|VolumeInfo { uuid, name, .. }| (uuid, name)).collect()
    }
}

fn taken(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("create group {name}: {why}"))
}

/// Returns the API's representation of a group. Volumes that were deleted are left out.
fn shown(name: String, volumes: &[Uuid], names: &BTreeMap<Uuid, String>) -> Group {
    Group { name, volumes: volumes.iter().filter_map(|id| names.get(id).cloned()).collect() }
}
