//! The kinds of tasks: which of them a request can stop, how, and the route that has the same
//! effect.

/// How a request stops a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Flatten,
    Relocate,
    Import,
    Export,
    Drain,
    Rebuild,
    Rebalance,
    Scrub,
}

/// A kind of task.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Method and path of the route that begins or ends such work without the list of tasks. The
    /// table of roles has its row, and a request that stops the task needs the role of that row.
    /// `None`: the server does the work on its own.
    pub(crate) direct: Option<(&'static str, &'static str)>,
    /// `None`: no request can stop it.
    pub(crate) stop: Option<Stop>,
}

const fn kind(name: &'static str, direct: (&'static str, &'static str), stop: Option<Stop>) -> Kind {
    Kind { name, direct: Some(direct), stop }
}

const fn own(name: &'static str) -> Kind {
    Kind { name, direct: None, stop: None }
}

/// All kinds.
pub(crate) const KINDS: [Kind; 13] = [
    kind("flatten", ("DELETE", "/volumes/{volume}/flatten"), Some(Stop::Flatten)),
    kind("relocate", ("DELETE", "/volumes/{volume}/relocation"), Some(Stop::Relocate)),
    kind("import", ("DELETE", "/volumes/{volume}/import"), Some(Stop::Import)),
    kind("export", ("GET", "/volumes/{volume}/snapshots/{snapshot}/export"), Some(Stop::Export)),
    kind("drain", ("PATCH", "/pool/pvs/{pv}"), Some(Stop::Drain)),
    kind("rebuild", ("PATCH", "/pool/members/{member}"), Some(Stop::Rebuild)),
    // The other members have what they took over, and nothing gives that back.
    kind("take-over", ("PATCH", "/pool/members/{member}"), None),
    // What has moved stays at its new place.
    kind("grow", ("POST", "/pool/pvs/{pv}/grow"), None),
    kind("rebalance", ("DELETE", "/pool/rebalance"), Some(Stop::Rebalance)),
    kind("scrub", ("DELETE", "/pool/scrub"), Some(Stop::Scrub)),
    own("dissolve"),
    own("free"),
    own("recompress"),
];

/// Returns the kind with this name.
pub(crate) fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Returns the kind of the task with this ID, which is `KIND:SUBJECT`.
pub(crate) fn of_task(id: &str) -> Option<&'static Kind> {
    find(id.split_once(':').map_or(id, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{End, Known, Progress, SeenTasks};
    use std::collections::BTreeSet;

    #[test]
    fn what_says_that_it_can_be_stopped_can_be() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len(), "a kind is there twice");
        for kind in &KINDS {
            let known = match kind.direct {
                Some(_) => Known::new(kind.name, "it", Progress::Unknown, None),
                None => Known::own(kind.name, "it", Progress::Unknown, None),
            };
            // Tasks of the server itself are not listed at once.
            let listed = SeenTasks::default().shown(|| vec![known], |_| End::Done, |_| {});
            for task in listed {
                assert_eq!(task.can_stop, kind.stop.is_some(), "{}", kind.name);
            }
            assert_eq!(of_task(&format!("{}:it:too", kind.name)).map(|of| of.name), Some(kind.name));
        }
        for name in ["take-over", "grow", "dissolve", "free", "recompress"] {
            assert!(find(name).unwrap().stop.is_none(), "{name}");
        }
        assert!(of_task("nothing:it").is_none() && of_task("").is_none());
    }

    /// A kind that is not in the table could not be stopped, whatever its list says.
    #[test]
    fn every_kind_that_is_listed_is_in_the_table() {
        let sources = [include_str!("tasks.rs"), include_str!("http/layouts.rs")];
        let mut seen = BTreeSet::new();
        for source in sources {
            for maker in ["Known::new(\"", "Known::own(\"", "seen_tasks.begun(\""] {
                let names = source.split(maker).skip(1).filter_map(|rest| rest.split('"').next());
                seen.extend(names.filter(|name| *name != "nothing"));
            }
        }
        let known: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(seen, known);
    }
}
