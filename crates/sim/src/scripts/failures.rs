//! Scripts of disks that fail.

use super::{KIB, volume};
use crate::workload::Op;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::pool::{Method, Placement};

/// Unreadable sectors are met by redirecting, copying, recording, moving and materializing.
pub(super) fn bad_sectors() -> Vec<Op> {
    let part = |vol, offset| Op::Write { vol, parts: vec![(offset, 512)], fua: false };
    vec![
        volume("a", 256 * KIB, 16 * KIB, 512),
        Op::Write { vol: 1, parts: vec![(0, 96 * KIB)], fua: true },
        Op::Drain,
        Op::Snapshot(vec![(1, "s".into())]),
        Op::BadReads,
        part(1, 512),
        part(1, 40 * KIB),
        Op::Drain,
        Op::Verify,
        Op::Method(1, Method::Copy),
        Op::Snapshot(vec![(1, "t".into())]),
        Op::BadReads,
        part(1, 1024),
        part(1, 72 * KIB),
        Op::Drain,
        Op::Verify,
        Op::Clone(1, "c".into()),
        Op::Flatten(2, true),
        Op::Settle,
        Op::Cdp(1, Some(CdpSettings::default())),
        part(1, 8 * KIB),
        Op::BadReads,
        part(1, 16 * KIB),
        Op::Drain,
        Op::Verify,
        Op::Write { vol: 1, parts: vec![(0, 96 * KIB)], fua: false },
        Op::Drain,
        Op::Verify,
        Op::DeleteSnapshots(vec![1]),
        Op::Settle,
    ]
}

/// A physical volume accepts no more writes at different times: when it is to be filled,
/// overwritten, copied to and moved to, before and after a batch is preserved, and in the middle of
/// a batch.
pub(super) fn failed_pv() -> Vec<Op> {
    let part = |vol, offset| Op::Write { vol, parts: vec![(offset, 512)], fua: false };
    let fail = |pv: u64, syncs: bool, after: u64| Op::FailPv(after << 16 | pv << 1 | u64::from(syncs));
    let mut script = vec![
        Op::Placement(Placement::Anywhere),
        volume("a", 256 * KIB, 16 * KIB, 512),
        volume("b", 256 * KIB, 16 * KIB, 512),
        Op::Write { vol: 1, parts: vec![(0, 96 * KIB)], fua: true },
        Op::Write { vol: 2, parts: vec![(0, 64 * KIB)], fua: true },
        Op::Drain,
        Op::Method(2, Method::Copy),
        Op::Cdp(2, Some(CdpSettings::default())),
    ];
    for (round, (pv, syncs)) in [(0, false), (0, true)].into_iter().enumerate() {
        let at = round as u64 * 4 * KIB;
        script.extend([
            Op::Snapshot(vec![(1, format!("s{round}")), (2, format!("t{round}"))]),
            fail(pv, syncs, round as u64),
            // The writes go to a new chunk, a part of a chunk, a whole chunk, and a part of one
            // that is preserved by a copy.
            Op::Write { vol: 1, parts: vec![(96 * KIB + at * 4, 16 * KIB)], fua: false },
            part(1, 512 + at),
            Op::Write { vol: 1, parts: vec![(32 * KIB, 16 * KIB)], fua: false },
            part(2, 20 * KIB + at),
            Op::Drain,
            Op::Verify,
            part(1, 1024 + at),
            part(2, 21 * KIB + at),
            Op::Discard { vol: 2, offset: 0, len: 8 * KIB, fua: false },
            Op::Drain,
            Op::Verify,
            Op::Relocate(1),
            Op::Settle,
            Op::Verify,
            Op::Reopen(None),
        ]);
    }
    script.extend([Op::DeleteSnapshots(vec![1]), Op::DeleteSnapshots(vec![2]), Op::Settle, Op::Verify]);
    script
}
