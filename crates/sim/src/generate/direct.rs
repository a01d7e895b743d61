//! The drawing of least sizes of writes by reference.

use super::{Generator, Kind};
use crate::oracle::VolId;
use crate::workload::{KIB, MIB, Op};
use hindcast_engine::pool::DirectMin;

impl Generator {
    /// Draws sizes for volumes, and more often than other changes of a volume.
    pub(crate) fn refer_by_volume(&mut self) {
        self.own_direct = true;
        for (_, weight) in self.weights.iter_mut().filter(|(kind, _)| *kind == Kind::Shape) {
            *weight = 3 * (*weight).max(1);
        }
    }

    pub(super) fn direct_min(&mut self, vol: VolId) -> Op {
        let sizes = [4 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 16 * MIB];
        let own = match self.rand.below(8) {
            0 => DirectMin::OfPool,
            1 => DirectMin::Never,
            _ => DirectMin::Bytes(self.rand.pick(&sizes)),
        };
        Op::DirectMin(vol, own)
    }
}
