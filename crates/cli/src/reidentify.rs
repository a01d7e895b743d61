//! `hindcast pool reidentify`: gives a copy of a pool identities of its own, without a server.

use crate::failure::Failure;
use crate::output::{Output, list};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_server::{Identified, Identity, Reidentified, reidentify, survey_identities};
use std::path::PathBuf;

/// Number of backups of the metadata that are kept: all. The limit of a server is an option of the
/// server.
const KEEP: usize = usize::MAX;

const AFTER_HELP: &str = "\
Use it after a pool was copied with its physical volumes: by a copy of the files, of a virtual \
machine, or of a storage system. The copy has the identities of the original. An initiator that sees \
both takes two disks for two paths to one disk, and writes to both. Run this command on the copy, \
before a server serves it. Without --yes it writes nothing.

All volumes, snapshots and exported files get new identities. Targets, schedules and writable \
snapshots follow them. Registrations and reservations of initiators are removed. Data, names, \
histories, and the content identities that exports and imports use, stay as they are. If a run is \
interrupted, the next run or the next start of the server completes it.

Check the list of physical volumes first: an absolute path may lead to a disk of the original.

Examples:
  hindcast pool reidentify --data /srv/copy          show what would change
  hindcast pool reidentify --data /srv/copy --yes    change it";

/// Give a copy of a pool new identities, offline, so that initiators see different disks
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the copy
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// Change the identities; without this option nothing is written
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open the data directory {}: it does not exist", args.data.display());
        return Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
    }
    match args.yes {
        false => output.show(&survey_identities(&args.data)?, survey),
        true => output.show(&reidentify(&args.data, KEEP)?, done),
    }
}

fn survey(found: &Identified) -> String {
    if found.unfinished {
        return "an earlier run was interrupted: --yes completes it, and so does the next start of the server"
            .to_owned();
    }
    let pvs = list(&["PHYSICAL VOLUME"], &[], found.pvs.iter().map(|path| vec![path.clone()]));
    let row = |v: &Identity| vec![v.name.clone(), v.old.clone()];
    let volumes = list(&["VOLUME", "IDENTITY NOW"], &[], found.volumes.iter().map(row));
    format!(
        "{pvs}\n\n{volumes}\n\n{}\n{}\n\nnothing was written; to change it: --yes",
        counts(found, "would get new identities: initiators would see new disks"),
        same_targets(&found.targets)
    )
}

fn done(report: &Reidentified) -> String {
    let row = |v: &Identity| vec![v.name.clone(), v.old.clone(), v.new.clone().unwrap_or_default()];
    let volumes =
        list(&["VOLUME", "IDENTITY BEFORE", "IDENTITY NOW"], &[], report.now.volumes.iter().map(row));
    let resumed = if report.resumed { "completed a run that was interrupted\n\n" } else { "" };
    format!(
        "{resumed}{volumes}\n\n{}\n{}",
        counts(&report.now, "have new identities: initiators see new disks"),
        same_targets(&report.now.targets)
    )
}

fn counts(found: &Identified, what: &str) -> String {
    format!(
        "{} volumes, {} snapshots and {} exported files {what}; {} schedules follow them",
        found.volumes.len(),
        found.snapshots.len(),
        found.files.len(),
        found.schedules.len()
    )
}

/// Lists the targets that have the name of a target of the original. Target names do not change,
/// because users have them in their configurations.
fn same_targets(names: &[String]) -> String {
    if names.is_empty() {
        return "no target has the name of a target of the original".to_owned();
    }
    let lines: String = names.iter().map(|name| format!("\n  {name}")).collect();
    format!(
        "targets with the names of targets of the original; no initiator may reach both (rename the volume, or \
         create a target with another name):{lines}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identified(new: Option<&str>) -> Identified {
        let identity = Identity { name: "db".into(), old: "0-1".into(), new: new.map(str::to_owned) };
        Identified {
            pvs: vec!["/dev/vdb".into()],
            volumes: vec![identity],
            targets: vec!["iqn.2026-11.io.hindcast:db".into()],
            ..Identified::default()
        }
    }

    #[test]
    fn what_is_told_before_and_after() {
        let text = survey(&identified(None));
        for part in ["/dev/vdb", "1 volumes", "nothing was written", "\n  iqn.2026-11.io.hindcast:db"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let report = Reidentified { resumed: true, now: identified(Some("2-3")), backup: None };
        let text = done(&report);
        for part in ["interrupted", "0-1", "2-3", "\n  iqn.2026-11.io.hindcast:db"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("nothing was written"));
        let unfinished = Identified { unfinished: true, ..Identified::default() };
        assert!(survey(&unfinished).contains("--yes completes it"));
        assert!(same_targets(&[]).starts_with("no target"));
    }
}
