//! Control operations: every change of the pool's configuration, as a record of the journal.
//!
//! A file has a family of operations, and all that the engine does with each of them. An operation
//! is a struct that implements [`Operation`], whose functions are in the order of an operation's
//! life:
//!
//! 1. `put` and `take`: its bytes in the journal. The layers above check what a user wants, make
//!    the operation under the lock of the names, and sequence it.
//! 2. `apply`: it changes the names in memory, right after its record was sequenced, and again at
//!    recovery. It returns to the user when its record is durable.
//! 3. `prepare`, `history`, `store`: destage comes to the record. It does what must be done before
//!    the commit, and notes in one commit what changes in the catalog and in histories.
//! 4. `after`: what follows from the commit. An operation changes the state of no background job.
//!    It returns a [`FollowUp`] that destage carries out, since destage lies above this folder.
//!
//! To add an operation:
//!
//! 1. Write its struct and its `impl Operation` in the file of its family. Functions with a default
//!    can be left out.
//! 2. Add a line with a new number to the table [`operations!`] below. It makes the variant of
//!    [`Control`], and the compiler rejects a number that is used twice.
//! 3. Add the operation and its bytes to `every_kind` and `golden_bytes` in `tests.rs`.

mod cdp;
mod change;
mod feature;
mod flatten;
mod group;
mod history;
mod import;
mod keep;
mod placement;
mod pv;
mod rollback;
mod snapshot;
#[cfg(test)]
mod tests;
mod trash;
mod volume;

pub(crate) use change::OperationChange;
pub(crate) use history::HistoryChange;

use crate::area::Area;
use crate::branch::DiscardRange;
use crate::branch::namespace::Namespace;
use crate::catalog::{FillRecord, Frozen, Txn, Value};
use crate::codec::{Reader, Writer, align_up};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BranchId, Epoch, Lsn, SnapshotId, VolumeId};
use crate::journal::record::RECORD_ALIGN;
use crate::settings::Placement;

/// Makes [`Control`] from a table: for each family its operations, each with the number that begins
/// its records. An operation that may rest on a moment has a second number for that case.
macro_rules! operations {
    ($($family:ident { $($kind:literal $(, at a moment $moment:literal)? => $name:ident,)+ })+) => {
        $(pub(crate) use $family::{$($name),+};)+

        /// One control operation. The ids in it are chosen before it is sequenced, and are never
        /// used twice.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) enum Control {
            $($($name($name),)+)+
        }

        $($(
            impl $name {
                const KIND: u8 = $kind;
                $(const KIND_AT_MOMENT: u8 = $moment;)?
            }

            impl From<$name> for Control {
                fn from(operation: $name) -> Control {
                    Control::$name(operation)
                }
            }
        )+)+

        impl Control {
            fn operation(&self) -> &dyn Operation {
                match self {
                    $($(Control::$name(operation) => operation,)+)+
                }
            }

            fn take(kind: u8, r: &mut Reader<'_>) -> Option<Control> {
                Some(match kind {
                    $($(
                        $kind => $name::take(r)?.into(),
                        $($moment => $name::take_at_moment(r)?.into(),)?
                    )+)+
                    _ => return None,
                })
            }
        }
    };
}

// A number is part of the format: it is never used for anything else.
operations! {
    volume {
        1 => CreateVolume,
        2 => ResizeVolume,
        3 => RenameVolume,
        4 => SetReadOnly,
        5 => DeleteVolume,
        13, at a moment 43 => CloneVolume,
        30 => CreateOver,
        66 => SetDirectMin,
    }
    rollback {
        14, at a moment 44 => RollBack,
    }
    snapshot {
        10 => CreateSnapshots,
        11 => DeleteSnapshots,
        12 => RenameSnapshot,
        15 => SetMethod,
        20 => SetLabels,
        21 => SetPolicy,
        23 => SetOrder,
    }
    pv {
        6 => AddPv,
        7 => SetDraining,
        8 => RemovePv,
    }
    placement {
        9 => SetPlacement,
        64 => SetVolumePlacement,
        65 => SetWeight,
    }
    flatten {
        31 => SetFill,
    }
    import {
        22 => SetImport,
    }
    cdp {
        40 => SetCdp,
        41 => AddMark,
        42 => RemoveMark,
    }
    group {
        45 => Group,
    }
    feature {
        50 => EnableFeatures,
    }
    keep {
        46 => KeepMoment,
    }
    trash {
        60 => TrashVolume,
        61 => RestoreVolume,
        62 => LabelVolume,
    }
}

/// All that the engine does with one kind of operation.
trait Operation {
    /// Appends the operation's number and its fields.
    fn put(&self, w: &mut Writer);

    /// Reads the fields. `None` if the bytes are no such operation.
    fn take(r: &mut Reader<'_>) -> Option<Self>
    where
        Self: Sized;

    /// See [`Control::check`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// See [`Control::shares_commit`]. False is always safe.
    fn shares_commit(&self) -> bool {
        false
    }

    /// See [`Control::rows`].
    fn rows(&self) -> usize {
        1
    }

    /// See [`Control::apply`]. An operation on something that an earlier operation deleted does
    /// nothing.
    fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()>;

    /// See [`Control::prepare`].
    fn prepare(&self, _core: &Core, _preparation: &mut Preparation) -> Result<()> {
        Ok(())
    }

    /// See [`Control::history`].
    fn history(&self, _core: &Core, _time: u64, _change: &mut HistoryChange) -> Result<()> {
        Ok(())
    }

    /// See [`Control::store`].
    fn store(&self, txn: &mut Txn<'_>) -> Result<()>;

    /// See [`Control::after`].
    fn after(&self, _core: &Core, _lsn: Lsn, _follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        Ok(())
    }
}

impl Control {
    /// Encodes the operation, padded with zeros to the alignment of records.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.operation().put(&mut w);
        let len = align_up(w.0.len() as u64, RECORD_ALIGN) as usize;
        w.0.resize(len, 0);
        w.0
    }

    /// Decodes an operation. Returns `None` when the bytes are no control operation of this
    /// version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Control> {
        let mut r = Reader::new(bytes);
        let control = match r.u8()? {
            DEDICATED => take_dedicated(&mut r)?,
            kind => Control::take(kind, &mut r)?,
        };
        is_padding(&mut r).then_some(control)
    }

    /// Refuses an operation that this build can decode, and can't carry out: it needs a format of a
    /// later build.
    fn check(&self) -> Result<()> {
        self.operation().check()
    }

    /// Returns whether the operation may be carried out in one commit with the records around it.
    /// It may not if it needs work before its commit, begins or ends a branch, or changes what is
    /// recorded of a branch.
    pub(crate) fn shares_commit(&self) -> bool {
        self.operation().shares_commit()
    }

    /// Returns whether the operation takes the snapshot of a branch with this epoch.
    pub(crate) fn takes_snapshot(&self, branch: BranchId, epoch: Epoch) -> bool {
        let is_it = |of: &Frozen| (of.branch, of.epoch) == (branch, epoch);
        matches!(self, Control::CreateSnapshots(c) if c.snapshots.iter().any(|(_, s)| is_it(&s.of)))
    }

    /// Returns the approximate number of the catalog's rows that the operation changes.
    pub(crate) fn rows(&self) -> usize {
        self.operation().rows()
    }

    /// Applies the operation to the names at its place in the order. It is called under the
    /// sequencing lock right after the operation's record was pushed, and for every such record at
    /// recovery.
    pub(crate) fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()> {
        self.operation().apply(names, lsn, time)
    }

    /// Adds what has to be done before the operation's commit, and what is known only before it.
    pub(crate) fn prepare(&self, core: &Core, preparation: &mut Preparation) -> Result<()> {
        self.operation().prepare(core, preparation)
    }

    /// Adds what the operation changes in histories, given the state in which it is carried out.
    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        self.operation().history(core, time, change)
    }

    /// Makes the operation part of a transaction.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.operation().store(txn)
    }

    /// Does what follows from the operation's commit, and adds what destage has to do.
    pub(crate) fn after(&self, core: &Core, lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        self.operation().after(core, lsn, follow_ups)
    }
}

/// The preparations that an operation needs before its commit. Only an operation that is carried
/// out alone has it.
#[derive(Default)]
pub(crate) struct Preparation {
    /// Ranges that are discarded in steps, which can be repeated.
    pub(crate) discards: Vec<DiscardRange>,
    /// Branches that nothing writes to after the commit.
    pub(crate) orphan_branches: Vec<BranchId>,
}

/// Work of destage that follows from a committed operation.
pub(crate) enum FollowUp {
    /// Deletes snapshots, when nothing rests on them.
    DeleteSnapshots(Vec<SnapshotId>),
    /// Drops the history of a deleted volume, when nothing rests on it.
    DropHistory { volume: VolumeId },
    /// Begins to record a branch behind the anchor that the operation made, or removes the anchor.
    ConfirmAnchor { branch: BranchId },
    /// Gives out the space of a new physical volume, unless that was done ahead of its turn.
    AddPv { pv: u32, extents: u32 },
    /// Starts or stops draining a physical volume.
    SetDraining { pv: u32, draining: bool },
    /// Forgets a physical volume.
    RemovePv { pv: u32 },
    /// Places new slots so.
    SetPlacement(Placement),
    /// Forgets where slices of a branch lie, because its placement has changed.
    ForgetRegions { branch: BranchId },
    /// Counts another part of a physical volume's size for Share.
    SetWeight { pv: u32, weight: u32 },
    /// Fills branches from these records, or stops filling them: (branch, record).
    SetFill(Vec<(BranchId, Option<FillRecord>)>),
}

/// Decodes the data of the control record with this LSN. Returns [`ErrorKind::Unsupported`] for a
/// record of a later build.
pub(crate) fn decode_control(lsn: Lsn, data: &[u8]) -> Result<Control> {
    let unsupported = |why: String| {
        Error::new(ErrorKind::Unsupported, format!("decode the control record with LSN {lsn}: {why}"))
    };
    let control =
        Control::decode(data).ok_or_else(|| unsupported("this build does not know its version".into()))?;
    control.check().map_err(|error| unsupported(error.to_string()))?;
    Ok(control)
}

/// Appends the number of an operation that may rest on a moment, and the moment.
fn put_at(w: &mut Writer, (plain, moment): (u8, u8), at: Option<Lsn>) {
    match at {
        None => w.u8(plain),
        Some(at) => w.u8(moment).u64(at),
    };
}

/// Reads the moment on which an operation rests: an LSN.
fn take_at(r: &mut Reader<'_>) -> Option<Lsn> {
    r.u64().filter(|at| *at != Lsn::ZERO)
}

/// The number before that of an operation on a dedicated physical volume. The number of the
/// physical volume stands between them.
const DEDICATED: u8 = 63;

/// Begins the record of an operation in an area.
fn put_area(w: &mut Writer, area: Area) {
    if let Area::Only(pv) = area {
        w.u8(DEDICATED).u32(pv);
    }
}

/// Reads the operation behind [`DEDICATED`].
fn take_dedicated(r: &mut Reader<'_>) -> Option<Control> {
    let (pv, kind) = (r.u32()?, r.u8()?);
    let area = Area::Only(pv);
    // Nothing else is looked at: a group here could hold the next one, and so on.
    Some(match kind {
        CreateVolume::KIND => CreateVolume { area, ..CreateVolume::take(r)? }.into(),
        CreateOver::KIND => CreateOver { area, ..CreateOver::take(r)? }.into(),
        CloneVolume::KIND => CloneVolume { area, ..CloneVolume::take(r)? }.into(),
        CloneVolume::KIND_AT_MOMENT => CloneVolume { area, ..CloneVolume::take_at_moment(r)? }.into(),
        RollBack::KIND => RollBack { area, ..RollBack::take(r)? }.into(),
        RollBack::KIND_AT_MOMENT => RollBack { area, ..RollBack::take_at_moment(r)? }.into(),
        KeepMoment::KIND => KeepMoment { area, ..KeepMoment::take(r)? }.into(),
        AddPv::KIND => AddPv { dedicated: true, ..AddPv::take(r).filter(|add| add.pv == pv)? }.into(),
        _ => return None,
    })
}

/// Reads the log2 of a chunk size.
fn take_chunk_log2(r: &mut Reader<'_>) -> Option<u8> {
    r.u8().filter(|chunk_log2| (9..=30).contains(chunk_log2))
}

impl Writer {
    /// Appends the length of a catalog value, and the value.
    fn value(&mut self, value: &impl Value) -> &mut Self {
        let bytes = value.encode();
        self.u16(bytes.len() as u16).bytes(&bytes)
    }
}

impl Reader<'_> {
    /// Takes a catalog value, whose length comes before it.
    fn value<V: Value>(&mut self) -> Option<V> {
        let len = self.u16()? as usize;
        V::decode(self.take(len)?)
    }
}

/// Returns whether the rest is nothing but the zeros that align a record.
fn is_padding(r: &mut Reader<'_>) -> bool {
    let mut left = 0;
    while let Some(byte) = r.u8() {
        left += 1;
        if byte != 0 {
            return false;
        }
    }
    left < RECORD_ALIGN
}
