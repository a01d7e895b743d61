//! Operations on histories: switching CDP on and off, and marks.

use super::{HistoryChange, Operation};
use crate::branch::namespace::Namespace;
use crate::catalog::{Event, LineRecord, Txn, decode_settings, encode_settings};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::Result;
use crate::ids::{Lsn, Stamp, VolumeId};
use crate::settings::CdpSettings;

/// Sets how the volume's history is kept, or that it is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetCdp {
    pub(crate) id: VolumeId,
    pub(crate) settings: Option<CdpSettings>,
}

impl Operation for SetCdp {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(self.settings.is_some() as u8);
        self.settings.iter().for_each(|settings| encode_settings(w, settings));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (id, on) = (r.u64()?, r.u8()?);
        let settings = match on {
            0 => None,
            1 => Some(decode_settings(r)?),
            _ => return None,
        };
        Some(SetCdp { id, settings })
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| {
            v.line.branch.cdp.want(self.settings);
            v.line.branch.cdp.wrote(lsn);
            v.line.branch.cdp.waiting.turn(lsn);
        });
        Ok(())
    }

    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        let Some(volume) = core.catalog.volume(self.id)? else { return Ok(()) };
        let branch = core.branch(volume.branch)?;
        let begins = branch.cdp.log.read().settings.is_none();
        match self.settings {
            Some(settings) => {
                let event = Event::On { settings, begins, size: volume.size, time };
                if begins {
                    change.lines.push((self.id, LineRecord::Branch { branch: branch.id, time }));
                }
                change.events.push((branch, event));
            }
            None if begins => {}
            None => change.events.push((branch, Event::Off { time })),
        }
        Ok(())
    }

    /// The settings are stored with the volume's history.
    fn store(&self, _txn: &mut Txn<'_>) -> Result<()> {
        Ok(())
    }
}

/// Gives this moment of the volume a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddMark {
    pub(crate) volume: VolumeId,
    pub(crate) name: String,
}

impl Operation for AddMark {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.volume).string(&self.name);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(AddMark { volume: r.u64()?, name: r.string()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()> {
        names.marks.add(self.volume, &self.name, Stamp { lsn, time });
        Ok(())
    }

    fn history(&self, _core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        change.lines.push((self.volume, LineRecord::Mark { name: self.name.clone(), time }));
        Ok(())
    }

    /// The mark is stored with the volume's history.
    fn store(&self, _txn: &mut Txn<'_>) -> Result<()> {
        Ok(())
    }
}

/// Removes the mark with this LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoveMark {
    pub(crate) volume: VolumeId,
    pub(crate) lsn: Lsn,
}

impl Operation for RemoveMark {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.volume).u64(self.lsn);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RemoveMark { volume: r.u64()?, lsn: r.u64()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.marks.remove(self.volume, self.lsn);
        Ok(())
    }

    fn history(&self, _core: &Core, _time: u64, change: &mut HistoryChange) -> Result<()> {
        change.forgotten = Some((self.volume, self.lsn));
        Ok(())
    }

    /// The mark is removed from the volume's history.
    fn store(&self, _txn: &mut Txn<'_>) -> Result<()> {
        Ok(())
    }
}
