//! The open targets and logical units ([`Live`]).

use super::found::{Found, Shown};
use crate::iscsi::registry::Scope;
use crate::passthrough::FileDevice;
use hindcast_engine::ids::Lsn;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::scsi::{LogicalUnit, Target};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

/// The maximum number of open targets that show the past. Each moment takes about 1 MB of memory,
/// and keeps history from expiring.
pub(crate) const MAX_SHOWN: usize = 256;

/// The open targets and logical units. They exist because an initiator or a client requested them.
#[derive(Default)]
pub(super) struct Live {
    pub(super) units: HashMap<Uuid, Unit>,
    pub(super) targets: HashMap<String, LiveTarget>,
    /// The moments in use, by the UUID of their logical units. The value is the UUID of the volume
    /// and the LSN.
    pub(super) moments: HashMap<Uuid, (Uuid, Lsn)>,
    /// The volumes that are being deleted or rolled back. No initiator may begin to use them.
    pub(super) going: HashSet<Uuid>,
}

pub(super) struct Unit {
    pub(super) lu: Arc<LogicalUnit>,
    /// The logical unit shows a snapshot or a moment. It keeps the snapshot or moment from being
    /// reclaimed. The server drops the logical unit when no target maps it.
    pub(super) past: bool,
    /// The exported file or device. `None` for a volume, a snapshot or a moment.
    pub(super) file: Option<Arc<FileDevice>>,
}

pub(super) struct LiveTarget {
    pub(super) target: Arc<Target>,
    pub(super) scope: Scope,
    /// The snapshot or moment that the target shows, if any. It does not change while a session
    /// uses the target, even if the target's name means something else later. The server drops the
    /// target after its last session ends.
    pub(super) shows: Option<Shown>,
}

impl LiveTarget {
    /// Returns whether a session or a login uses the target. A login holds the target before its
    /// session exists.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.target) > 1 || !self.target.nexuses().is_empty()
    }
}

impl Live {
    /// Returns the open target of `found`, and the past that it shows. Creates the target if it is
    /// not open.
    pub(super) fn target(&mut self, found: &Found, groups: &[u16]) -> Result<(Arc<Target>, Option<Shown>)> {
        if let Some(old) = self.targets.get(&found.name) {
            let both_moments =
                matches!((old.shows, found.shows), (Some(Shown::Moment(_)), Some(Shown::Moment(_))));
            // If two initiators log in by the same name at the same time, both get the moment that
            // the first one resolved.
            let is_same = old.shows == found.shows || both_moments && old.is_in_use();
            if old.scope == found.scope && is_same {
                return Ok((old.target.clone(), old.shows));
            }
            // Sessions can still use a volume that was renamed, or a snapshot that was deleted. The
            // name of their target now belongs to something else.
            if !old.target.nexuses().is_empty() {
                let text = format!(
                    "open {}: sessions of the earlier volume with this name have not ended",
                    found.name
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
        let target = Target::new(&found.name, groups);
        let new = LiveTarget { target: target.clone(), scope: found.scope.clone(), shows: found.shows };
        self.targets.insert(found.name.clone(), new);
        Ok((target, found.shows))
    }

    /// Returns whether the target may be opened. Only targets that show the past are limited, to
    /// [`MAX_SHOWN`].
    pub(super) fn has_room(&mut self, found: &Found) -> bool {
        let is_full = |live: &Live| {
            let shown = live.targets.iter().filter(|(name, t)| t.shows.is_some() && **name != found.name);
            shown.count() >= MAX_SHOWN
        };
        if found.shows.is_none() || !is_full(self) {
            return true;
        }
        self.let_go();
        !is_full(self)
    }

    /// Drops the snapshots and moments that no session uses any more. So the pool can free the
    /// space of deleted ones.
    pub(super) fn let_go(&mut self) {
        self.targets.retain(|_, t| t.shows.is_none() || t.is_in_use());
        let inventories: Vec<_> = self.targets.values().map(|t| t.target.inventory()).collect();
        let mapped = |lu: &Arc<LogicalUnit>| {
            inventories.iter().any(|inventory| inventory.values().any(|known| Arc::ptr_eq(known, lu)))
        };
        self.units.retain(|_, unit| !unit.past || mapped(&unit.lu));
        self.moments.retain(|id, _| self.units.contains_key(id));
    }

    /// Returns the past that a target of the volume shows, if a session uses the target.
    pub(super) fn shown_by(&self, target: &str, volume: &Uuid) -> Option<Shown> {
        let of_volume = |t: &&LiveTarget| t.scope == Scope::Volume(*volume) && t.is_in_use();
        self.targets.get(target).filter(of_volume).and_then(|t| t.shows)
    }
}
