//! Mutation tests: they prove that the simulator notices missing syncs. The syncs of one purpose do
//! nothing, and a script or a seed must fail.

use crate::enumerate::{Cut, Part, enumerate};
use crate::layouts::Shape;
use crate::random_run;
use crate::scripts::{Script, scripts};
use hindcast_engine::disk::SyncPurpose;

/// The run that noticed missing syncs of one purpose.
#[derive(Debug)]
pub enum Caught {
    /// A cut of a script: (name, cut, failure).
    Script(&'static str, Cut, String),
    /// A random run: (seed, failure).
    Seed(u64, String),
    /// No script and no random run noticed.
    Never,
}

/// Disables the syncs of `purpose` and looks for a failure: first in the scripts, then in up to
/// `seeds` random runs.
pub fn mutate(purpose: SyncPurpose, seeds: u64, ops: u64, jobs: usize) -> Caught {
    let of_shared = [SyncPurpose::CdpShared, SyncPurpose::CdpSorted].contains(&purpose);
    let (first, rest): (Vec<Script>, Vec<Script>) = scripts().into_iter().partition(|script| {
        let is_first = match purpose {
            SyncPurpose::Layout | SyncPurpose::Stale => script.layout == Some(Shape::Mirror),
            SyncPurpose::Parity => script.layout == Some(Shape::RAID5),
            _ => script.layout.is_none(),
        };
        script.shared_segments == of_shared && is_first
    });
    for script in first.into_iter().chain(rest) {
        match enumerate(&script, Part::ALL, Some(purpose), 1, jobs) {
            Ok(mut done) => {
                if let Some((cut, why)) = done.failed.pop() {
                    return Caught::Script(script.name, cut, why);
                }
            }
            // The script fails without a mutation, too. Other tests report that.
            Err(_) => continue,
        }
    }
    for seed in 0..seeds {
        if let Err(why) = random_run(seed, ops, Some(purpose), None) {
            return Caught::Seed(seed, why);
        }
    }
    Caught::Never
}
