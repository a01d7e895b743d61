//! The fates of unsynced changes at a power loss: which changes survive, and which are torn.

use crate::rand::Rand;
use hindcast_engine::disk::Image;
use std::collections::BTreeMap;

/// The way in which a power loss treats unsynced changes. Changes are independent unless a variant
/// states otherwise: a later change can survive while an earlier one is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerLoss {
    /// No change survives.
    LoseAll,
    /// Every change survives.
    KeepAll,
    /// Any subset of whole changes survives.
    Subset,
    /// Any subset survives, and writes may be torn.
    Tears,
    /// All changes before some moment survive, over all disks. The change at that moment may be
    /// torn.
    Prefix,
    /// All changes from some moment on survive, over all disks.
    Suffix,
    /// Each disk keeps all its changes or none.
    ByDisk,
}

impl PowerLoss {
    /// All variants.
    pub const ALL: [PowerLoss; 7] = [
        PowerLoss::LoseAll,
        PowerLoss::KeepAll,
        PowerLoss::Subset,
        PowerLoss::Tears,
        PowerLoss::Prefix,
        PowerLoss::Suffix,
        PowerLoss::ByDisk,
    ];
}

/// The way in which writes to a disk tear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TearModel {
    /// Size in bytes of the unit that a disk writes wholly or not at all (512 or 4096). This holds
    /// for an aligned unit that one write covers.
    pub atomic: u64,
    /// Size in bytes of the aligned block that may become garbage, with all its earlier content.
    /// This can happen to a block in whose middle a write was cut, and to a block that a write
    /// covered only in part. 0 means that no block becomes garbage.
    pub garbage: u64,
}

impl TearModel {
    /// Sectors of 512 bytes. A write to one never harms another.
    pub const SECTORS: TearModel = TearModel { atomic: 512, garbage: 0 };
    /// Sectors of 512 bytes on a medium that rewrites blocks of 4 KiB.
    pub const EMULATED: TearModel = TearModel { atomic: 512, garbage: 4096 };
    /// Blocks of 4 KiB, each written wholly or not at all.
    pub const BLOCKS: TearModel = TearModel { atomic: 4096, garbage: 0 };
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Keep,
    Lose,
    Tear,
}

/// The decisions of one power loss, or of one failed sync.
pub(crate) struct Fates {
    how: PowerLoss,
    rand: Rand,
    cut: u64,
    keep_percent: u64,
    by_disk: BTreeMap<u64, bool>,
}

impl Fates {
    /// Prepares decisions over the changes with the numbers `all`.
    pub(crate) fn new(how: PowerLoss, mut all: Vec<u64>, mut rand: Rand) -> Self {
        all.sort_unstable();
        // There is one place more than there are changes, so that a prefix can hold every change
        // and a suffix can hold none.
        let cut = all.get(rand.below(all.len() as u64 + 1) as usize).copied().unwrap_or(u64::MAX);
        let keep_percent = rand.pick(&[10, 50, 90]);
        Fates { how, rand, cut, keep_percent, by_disk: BTreeMap::new() }
    }

    fn fate(&mut self, disk: u64, at: u64) -> Fate {
        let keep = match self.how {
            PowerLoss::LoseAll => false,
            PowerLoss::KeepAll => true,
            PowerLoss::Subset => self.rand.percent(self.keep_percent),
            PowerLoss::Tears if self.rand.percent(40) => return Fate::Tear,
            PowerLoss::Tears => self.rand.percent(self.keep_percent),
            PowerLoss::Prefix if at == self.cut => return Fate::Tear,
            PowerLoss::Prefix => at < self.cut,
            PowerLoss::Suffix => at >= self.cut,
            PowerLoss::ByDisk => {
                let rand = &mut self.rand;
                *self.by_disk.entry(disk).or_insert_with(|| rand.percent(50))
            }
        };
        if keep { Fate::Keep } else { Fate::Lose }
    }

    /// Decides whether a change that can't be torn survives.
    pub(crate) fn survives(&mut self, disk: u64, at: u64) -> bool {
        match self.fate(disk, at) {
            Fate::Keep => true,
            Fate::Lose => false,
            Fate::Tear => self.rand.percent(50),
        }
    }

    /// Decides whether a change of a name survives. The directory counts as a disk.
    pub(crate) fn name_survives(&mut self, at: u64) -> bool {
        self.survives(0, at)
    }

    /// Applies to `image` what is left of a write.
    pub(crate) fn write(
        &mut self,
        disk: u64,
        at: u64,
        tear: &TearModel,
        image: &mut Image,
        offset: u64,
        data: &[u8],
    ) {
        match self.fate(disk, at) {
            Fate::Keep => image.write(data, offset),
            Fate::Lose => {
                // The length is metadata and has a fate of its own.
                if self.how != PowerLoss::LoseAll && self.rand.percent(25) {
                    image.set_len(image.len().max(offset + data.len() as u64));
                }
            }
            Fate::Tear => self.tear(tear, image, offset, data),
        }
    }

    fn tear(&mut self, model: &TearModel, image: &mut Image, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let units: Vec<u64> = (offset / model.atomic..end.div_ceil(model.atomic)).collect();
        let cut = self.rand.below(units.len() as u64 + 1) as usize;
        let shape = self.rand.below(3);
        let mut written = BTreeMap::new();
        for (number, unit) in units.into_iter().enumerate() {
            let kept = match shape {
                0 => number < cut,
                1 => number >= cut,
                _ => self.rand.percent(50),
            };
            if kept {
                let from = offset.max(unit * model.atomic);
                let to = end.min((unit + 1) * model.atomic);
                image.write(&data[(from - offset) as usize..(to - offset) as usize], from);
                if let Some(block) = from.checked_div(model.garbage) {
                    *written.entry(block).or_insert(0) += to - from;
                }
            }
        }
        if model.garbage == 0 {
            return;
        }
        for block in offset / model.garbage..end.div_ceil(model.garbage) {
            let covered = offset <= block * model.garbage && (block + 1) * model.garbage <= end;
            let whole = [0, model.garbage].contains(written.get(&block).unwrap_or(&0));
            if !(covered && whole) && self.rand.percent(30) {
                let mut garbage = vec![0; model.garbage as usize];
                self.rand.fill(&mut garbage);
                let len = image.len().saturating_sub(block * model.garbage).min(model.garbage);
                image.write(&garbage[..len as usize], block * model.garbage);
            }
        }
    }
}
