//! Mutation tests: they prove that the simulator notices missing syncs and broken rules. A script
//! or a seed must fail.

use crate::enumerate::{Cut, Part, enumerate};
use crate::layouts::Shape;
use crate::random_run;
use crate::scripts::{Script, scripts};
use hindcast_engine::disk::SyncPurpose;

/// What is wrong in all runs of a mutation test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// The syncs of one purpose do nothing.
    Dropped(SyncPurpose),
    /// The engine breaks a rule.
    #[cfg(feature = "mutations")]
    Broken(hindcast_engine::Rule),
}

impl Mutation {
    /// All mutations that this build can make.
    pub fn all() -> Vec<Mutation> {
        let all = SyncPurpose::ALL.into_iter().map(Mutation::Dropped);
        #[cfg(feature = "mutations")]
        let all = all.chain(hindcast_engine::Rule::ALL.into_iter().map(Mutation::Broken));
        all.collect()
    }

    /// The name of the purpose or of the rule.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::Dropped(purpose) => purpose.name(),
            #[cfg(feature = "mutations")]
            Mutation::Broken(rule) => rule.name(),
        }
    }

    fn dropped(self) -> Option<SyncPurpose> {
        match self {
            Mutation::Dropped(purpose) => Some(purpose),
            #[cfg(feature = "mutations")]
            Mutation::Broken(_) => None,
        }
    }

    /// Returns whether a script is likely to notice.
    fn suits(self, script: &Script) -> bool {
        let is_of_shared =
            [SyncPurpose::CdpShared, SyncPurpose::CdpSorted].map(Some).contains(&self.dropped());
        let layout = match self {
            Mutation::Dropped(SyncPurpose::Layout | SyncPurpose::Stale) => Some(Shape::Mirror),
            Mutation::Dropped(SyncPurpose::Parity) => Some(Shape::RAID5),
            Mutation::Dropped(_) => None,
            #[cfg(feature = "mutations")]
            Mutation::Broken(_) => return script.name.starts_with("reference"),
        };
        script.shared_segments == is_of_shared && script.layout == layout
    }
}

/// The run that noticed a mutation.
#[derive(Debug)]
pub enum Caught {
    /// A cut of a script: (name, cut, failure).
    Script(&'static str, Cut, String),
    /// A random run: (seed, failure).
    Seed(u64, String),
    /// No script and no random run noticed.
    Never,
}

/// Makes a mutation and looks for a failure: first in the scripts, then in up to `seeds` random
/// runs. A broken rule is broken in all pools of the process meanwhile.
pub fn mutate(mutation: Mutation, seeds: u64, ops: u64, jobs: usize) -> Caught {
    #[cfg(feature = "mutations")]
    if let Mutation::Broken(rule) = mutation {
        hindcast_engine::Rule::break_in_all_pools(Some(rule));
        let caught = look(mutation, seeds, ops, jobs);
        hindcast_engine::Rule::break_in_all_pools(None);
        return caught;
    }
    look(mutation, seeds, ops, jobs)
}

fn look(mutation: Mutation, seeds: u64, ops: u64, jobs: usize) -> Caught {
    let dropped = mutation.dropped();
    let (first, rest): (Vec<Script>, Vec<Script>) =
        scripts().into_iter().partition(|script| mutation.suits(script));
    // A broken rule is noticed at few cuts, so every sixteenth is tried first.
    let some = Part { index: 0, of: 16 };
    let sparse = first.iter().filter(|_| dropped.is_none()).map(|script| (script, some));
    for (script, part) in sparse.chain(first.iter().chain(&rest).map(|script| (script, Part::ALL))) {
        match enumerate(script, part, dropped, 1, jobs) {
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
        if let Err(why) = random_run(seed, ops, dropped, None) {
            return Caught::Seed(seed, why);
        }
    }
    Caught::Never
}
