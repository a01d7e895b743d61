//! The targets and logical units that are open ([`Live`]).

use super::found::{Found, Shown};
use crate::iscsi::registry::Scope;
use crate::passthrough::FileDevice;
use hindcast_engine::ids::Lsn;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::scsi::{LogicalUnit, Target};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

/// Targets that show the past, at once: each moment takes about a megabyte of memory, and keeps
/// history from expiring.
pub(crate) const MAX_SHOWN: usize = 256;

/// Targets and logical units that exist because an initiator or a client asked for them.
#[derive(Default)]
pub(super) struct Live {
    pub(super) units: HashMap<Uuid, Unit>,
    pub(super) targets: HashMap<String, LiveTarget>,
    /// Moments that are in use: the identity of their logical units, with the volume's identity and
    /// the LSN.
    pub(super) moments: HashMap<Uuid, (Uuid, Lsn)>,
    /// Volumes that are being deleted: no initiator may begin to use them.
    pub(super) going: HashSet<Uuid>,
}

pub(super) struct Unit {
    pub(super) lu: Arc<LogicalUnit>,
    /// A snapshot or moment: it keeps them from being reclaimed, and goes when no target has it.
    pub(super) past: bool,
    /// Set where it is not a volume.
    pub(super) file: Option<Arc<FileDevice>>,
}

pub(super) struct LiveTarget {
    pub(super) target: Arc<Target>,
    pub(super) scope: Scope,
    /// Set if the target shows a snapshot or a moment. It is fixed while a session uses the target,
    /// whatever the target's name means later. The target goes with its last session.
    pub(super) shows: Option<Shown>,
}

impl LiveTarget {
    /// A login holds the target before its session does.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.target) > 1 || !self.target.nexuses().is_empty()
    }
}

impl Live {
    /// The target of the device server, made if there is none, and what of the past it shows.
    pub(super) fn target(&mut self, found: &Found, groups: &[u16]) -> Result<(Arc<Target>, Option<Shown>)> {
        if let Some(old) = self.targets.get(&found.name) {
            let both_moments =
                matches!((old.shows, found.shows), (Some(Shown::Moment(_)), Some(Shown::Moment(_))));
            // Of two that log in at once by the same name, the moment of the first counts.
            let is_same = old.shows == found.shows || both_moments && old.is_in_use();
            if old.scope == found.scope && is_same {
                return Ok((old.target.clone(), old.shows));
            }
            // The name belonged to a volume that was renamed, or a snapshot that was deleted, and
            // whose sessions go on.
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

    /// Is there room for a target, if it is one that shows the past?
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

    /// Lets go of snapshots and moments that no session uses any more, so that deleted ones give
    /// their space back.
    pub(super) fn let_go(&mut self) {
        self.targets.retain(|_, t| t.shows.is_none() || t.is_in_use());
        let inventories: Vec<_> = self.targets.values().map(|t| t.target.inventory()).collect();
        let mapped = |lu: &Arc<LogicalUnit>| {
            inventories.iter().any(|inventory| inventory.values().any(|known| Arc::ptr_eq(known, lu)))
        };
        self.units.retain(|_, unit| !unit.past || mapped(&unit.lu));
        self.moments.retain(|id, _| self.units.contains_key(id));
    }

    /// What a target of a volume shows, if a session uses it.
    pub(super) fn shown_by(&self, target: &str, volume: &Uuid) -> Option<Shown> {
        let of_volume = |t: &&LiveTarget| t.scope == Scope::Volume(*volume) && t.is_in_use();
        self.targets.get(target).filter(of_volume).and_then(|t| t.shows)
    }
}
