//! The drawing of operations on physical volumes and on the placement.

use super::{Generator, Kind};
use crate::oracle::VolId;
use crate::workload::{Op, Plan};
use hindcast_engine::pool::Placement;

impl Generator {
    /// Draws all placements, and twice as many operations on physical volumes.
    pub(crate) fn place_by_chunk(&mut self) {
        self.by_chunk = true;
        for (_, weight) in self.weights.iter_mut().filter(|(kind, _)| *kind == Kind::Pv) {
            *weight *= 2;
        }
    }

    pub(super) fn pv(&mut self, vol: VolId) -> Op {
        if self.by_chunk && self.rand.percent(30) {
            return match self.rand.below(14) {
                0 => Op::Rebalance(false),
                1..=4 => Op::Rebalance(true),
                5..=7 => Op::Placement(Placement::Share),
                8..=9 => Op::Placement(Plan::snap_aware(&mut self.rand)),
                10 => Op::Weight(self.rand.bits(), self.rand.pick(&[1, 50, 100, 100, 300])),
                _ => Op::VolumePlacement(vol, self.own_placement()),
            };
        }
        match self.rand.below(10) {
            0..=2 => {
                let (size, device) = Plan::pv(&mut self.rand, self.extent_size);
                Op::AddPv { size, device }
            }
            3..=5 => Op::DrainPv(self.rand.bits(), true),
            6 => Op::DrainPv(self.rand.bits(), false),
            7..=8 => Op::RemovePv(self.rand.bits()),
            _ => {
                // By a draw that other draws do not see.
                let upgrade = self.rand.clone().percent(40);
                let placement = Plan::placement(&mut self.rand);
                if upgrade { Op::EnableFeature } else { Op::Placement(placement) }
            }
        }
    }

    fn own_placement(&mut self) -> Option<Placement> {
        let snap_aware = Plan::snap_aware(&mut self.rand);
        let placements = [Placement::Anywhere, Placement::Contiguous, Placement::Share, snap_aware];
        Some(self.rand.pick(&placements)).filter(|_| self.rand.percent(80))
    }
}
