//! The real engine in the simulator: a sample of what `sim` runs at length.

use hindcast_engine::disk::SyncPurpose;
use hindcast_sim::{Caught, DEFAULT_OPS, Mutation, Part, enumerate, mutate, plain_run, random_run, scripts};

#[test]
fn random_runs_pass() {
    for seed in 0..20 {
        random_run(seed, DEFAULT_OPS, None, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// The script of shared segments makes the pool sort runs.
#[test]
fn the_script_of_shared_segments_sorts() {
    let script = scripts().into_iter().find(|script| script.name == "shared-history").unwrap();
    let run = hindcast_sim::run_script(&script, None, None, None).unwrap();
    assert!(run.summary().runs_sorted >= 6, "{} runs", run.summary().runs_sorted);
}

/// Shared segments are synced, and so are the segments that their runs are sorted into.
#[test]
fn missing_syncs_of_shared_segments_are_noticed() {
    for purpose in [SyncPurpose::CdpShared, SyncPurpose::CdpSorted] {
        let caught = mutate(Mutation::Dropped(purpose), 0, DEFAULT_OPS, 2);
        assert!(matches!(caught, Caught::Script("shared-history", ..)), "{purpose:?}: {caught:?}");
    }
}

/// Seeds that once found bugs. While the workload does not change its draws, each seed still goes
/// through the code that was wrong.
#[test]
fn seeds_that_found_bugs() {
    let seeds = [
        (6, "a creation that was cut short was taken for a pool"),
        (41, "restarts in a row used up the journal's segments"),
        (47, "a removal in the journal did not count after a restart"),
        (200, "the contiguous policy opened extents that others were promised"),
        (337, "the store panicked over a damaged catalog"),
        (384, "a neighbour's staged sectors passed for the chunk's own"),
        (1039, "the store panicked when it was dropped"),
        (2628, "a poisoned pool did not serve reads"),
        (5971, "a leftover segment with the right number was taken for the start of the log"),
        (25798, "what a failed sync had left in the page cache was recorded as durable after a restart"),
        (2533, "acknowledged records were lost while the tail was written again in place"),
        (6833, "extents opened by a batch were not counted before its commit"),
    ];
    for (seed, what) in seeds {
        plain_run(seed, DEFAULT_OPS).unwrap_or_else(|why| panic!("seed {seed} ({what}): {why}"));
    }
}

/// Seeds that once found bugs in runs of all operations.
#[test]
fn seeds_of_whole_runs_that_found_bugs() {
    let seeds = [
        (25100460, "the model took a write for undone whose first records were taken before a disk failed"),
        (31203114, "the model took a weight that a physical volume has already for a record"),
        (20201284, "a scrub waited for a journal that nobody destaged, as the check of a closed pool did"),
        (1002477, "an anchor whose volume never began to record was kept for ever"),
        (1003472, "the model took lost records for moments: opening had written one of its own"),
        (1003892, "extents that a full file system had no room for counted as used, and never came back"),
        (2003299, "the model knew of no anchor before an import that makes a volume smaller"),
        (2012587, "no room for the copy of the journal's tail, and the pool did not open"),
        (2013490, "the model overlooked that a volume began to be flattened while its images were away"),
        (
            2055591,
            "the model knew no catalog that finds its file system full, and goes on where there is space",
        ),
        (
            14474,
            "the model took a discard that was cut short for done: its sector could not be read, and the LSN said otherwise",
        ),
        (2112705, "extents took what a file system keeps for the catalog, though a device had others"),
        (
            3050784,
            "what a snapshot that was being dissolved at a crash saw was preserved again, without a promise",
        ),
        (
            3274840,
            "a torn control record took an older snapshot's place, and its sum did not see it: the pool did not open",
        ),
        (2113071, "a moment that an image's return would bring back was said to be lost"),
        (10107, "a pool opened healthy though the catalog's store had failed on the way"),
        (10427, "a drain failed in a pool that opened healthy over a failed store"),
        (20350, "the model took all records of a write that failed in part for gone"),
        (20036, "a segment's header that can't be read kept the pool closed"),
        (1864, "reads of a poisoned pool met a lock of the page cache that a panic had left poisoned"),
        (1820, "a physical volume that leaves took space of a full file system to be wiped"),
        (7486, "the model knew no chunk that growing by force brings in"),
        (6305, "a crash during the drain after a panic was taken for a failed read"),
        (21746, "a time that the clock says now was looked for in an older stretch"),
        (215407, "the model took a lost record for kept where its sector could not be read"),
        (219884, "the model looked what a policy may delete before room was made, for which one went"),
        (
            213758,
            "the model took a snapshot for one that could go, and it was an anchor when all was carried out",
        ),
        (
            214308,
            "the model knew no chunk that is too long for a record, and is brought in for older snapshots too",
        ),
        (212035, "the model waited for space of a physical volume that failed while the pool opened"),
        (206808, "the model counted on a physical volume whose addition was not carried out yet"),
        (206960, "the same, where syncs of the only other one that takes data fail"),
        (209465, "the same, with records of a history before the addition"),
        (211512, "the same, while the one that works is drained"),
        (
            214248,
            "the model took a record of a stream for refused as a whole, though its beginning was taken",
        ),
        (209781, "a journal file that was given up kept the pool closed when it could be read again"),
        (217078, "an interrupted batch was not completed in memory beside sectors that can't be read"),
        (40_010_547, "the parity log did not have what destage keeps of a unit that it writes as a whole"),
        (40_011_301, "the same, after a kill"),
        (40_030_561, "a member whose new header was cut short could not be rebuilt without force"),
        (50_011_145, "an entry of the parity log counted after writes without one to its lines"),
        (60_010_897, "a salvage showed a block that the parity log proves wrong"),
        (60_011_878, "a salvage computed parities from those that its opening had corrected in memory only"),
    ];
    for (seed, what) in seeds {
        random_run(seed, DEFAULT_OPS, None, None).unwrap_or_else(|why| panic!("seed {seed} ({what}): {why}"));
    }
}

/// One seed in a hundred is about hundreds of snapshots.
#[test]
fn a_crowd_of_snapshots_passes() {
    for seed in [9_000_100, 9_000_400] {
        let done =
            random_run(seed, DEFAULT_OPS, None, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert!(done.most_snapshots >= 300 && done.crashes > 0, "seed {seed}: {done:?}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 100..105 {
        let first = random_run(seed, DEFAULT_OPS, None, None).unwrap();
        assert_eq!(random_run(seed, DEFAULT_OPS, None, None).unwrap(), first, "seed {seed}");
    }
}

#[test]
fn a_script_survives_every_cut() {
    let script = scripts().into_iter().find(|s| s.name == "overwrite").unwrap();
    let done = enumerate(&script, Part::ALL, None, 1, 2).unwrap();
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert!(done.passed > 100);
}

#[test]
fn a_missing_journal_sync_is_noticed() {
    assert!(!matches!(mutate(Mutation::Dropped(SyncPurpose::Journal), 10, DEFAULT_OPS, 2), Caught::Never));
}

/// I5: content that a snapshot needs is durable in its new place, and the catalog records that
/// durably, before the content is overwritten. If any of these syncs is missing, the scripts of
/// snapshots alone notice.
#[test]
fn a_missing_preservation_is_noticed() {
    for name in ["snapshot-redirect", "snapshot-copy", "clone"] {
        let script = scripts().into_iter().find(|s| s.name == name).unwrap();
        for purpose in [SyncPurpose::Preserve, SyncPurpose::Catalog, SyncPurpose::Apply] {
            let done = enumerate(&script, Part::ALL, Some(purpose), 1, 2).unwrap();
            assert!(!done.failed.is_empty(), "{name} without {} syncs", purpose.name());
        }
    }
}
