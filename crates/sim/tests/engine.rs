//! The real engine in the simulator: a sample of what `sim` runs at length.

use hindcast_engine::disk::SyncPurpose;
use hindcast_sim::{Caught, DEFAULT_OPS, enumerate, mutate, random_run, scripts};

#[test]
fn random_runs_pass() {
    for seed in 0..20 {
        random_run(seed, DEFAULT_OPS, None, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
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
    let done = enumerate(&script, None, 1, 2).unwrap();
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert!(done.passed > 100);
}

#[test]
fn a_missing_journal_sync_is_noticed() {
    assert!(!matches!(mutate(SyncPurpose::Journal, 10, DEFAULT_OPS, 2), Caught::Never));
}
