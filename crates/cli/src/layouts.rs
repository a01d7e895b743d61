//! `hindcast pool layouts`, `replace`, `online`, `offline` and `spares`: mirrors, RAID-5, their
//! members, and disks that wait for one of them to fail.

use crate::failure::Failure;
use crate::output::list;
use crate::session::Session;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use hindcast_api::{
    AddLayout, AddPv, ErrorBody, ErrorKind, LayoutKind, MemberState, MemberTarget, PatchMember, Pv, PvLayout,
    Size, SpareDisk,
};

const REPLACE_EXAMPLES: &str = "\
Examples:
  hindcast pool replace /dev/vdb /dev/vdd        another disk takes the place of /dev/vdb
  hindcast pool replace /dev/vdb m2.img --size 1T

A disk that still answers stays in use until the new one has everything. `hindcast tasks` shows how \
far that is.";

const ONLINE_EXAMPLES: &str = "\
Example:
  hindcast pool online /dev/vdb                  the disk was away, and is there again

The disk gets all data in use again, because writes went on without it.";

/// How a physical volume keeps its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// On one disk
    Plain,
    /// On several disks, each byte on as many as there are copies
    Mirror,
    /// On several disks, with a parity: any one of them may fail
    Raid5,
}

/// What `pool add` adds.
#[derive(Debug, ClapArgs)]
pub(crate) struct Addition {
    /// File name in the data directory, or absolute path of a file or block device on the server's
    /// machine; with --layout several of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// How the content is kept
    #[arg(long, value_enum, default_value = "plain")]
    layout: Layout,
    /// Name of the mirror or the RAID-5
    #[arg(long, required_if_eq_any([("layout", "mirror"), ("layout", "raid5")]))]
    name: Option<String>,
    /// Add the disks as spares: one of them takes the place of a member of a mirror or RAID-5 that
    /// is out for ten minutes (serve --spare-after)
    #[arg(long, conflicts_with_all = ["layout", "name", "copies", "columns", "unit"])]
    spare: bool,
    /// Number of copies of each byte in a mirror: 2 to 4 [default: 2]
    #[arg(long)]
    copies: Option<u64>,
    /// Number of units in a row of a RAID-5, with the parity: 3 to 16 [default: the number of
    /// disks]
    #[arg(long)]
    columns: Option<u64>,
    /// Size of a unit of a RAID-5: a power of two from 4K to 1M [default: 64K]
    #[arg(long)]
    unit: Option<Size>,
    /// Create sparse files of this size [default: the files or devices exist, and their whole
    /// length is used]
    #[arg(long)]
    size: Option<Size>,
    /// Add it even if it carries the label of another pool; the data of that pool is lost
    #[arg(long)]
    force: bool,
}

impl Addition {
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let Addition { paths, layout, name, spare, copies, columns, unit, size, force } = self;
        let add = |path: String| AddPv { path, size: size.map(|size| size.0), force };
        if spare {
            let added = paths.into_iter().map(|path| session.client.add_spare(&add(path)));
            let added = added.collect::<Result<Vec<_>, _>>()?;
            return session.output.show(&added, |added| {
                let line = |disk: &SpareDisk| format!("added spare {}: {}", disk.path, Size(disk.size));
                added.iter().map(line).collect::<Vec<_>>().join("\n")
            });
        }
        let kind = match layout {
            Layout::Plain => None,
            Layout::Mirror => Some(LayoutKind::Mirror),
            Layout::Raid5 => Some(LayoutKind::Raid5),
        };
        let unit = unit.map(|unit| unit.0);
        let pv = match (kind, name) {
            (Some(kind), Some(name)) => {
                let members = paths.into_iter().map(add).collect();
                session.client.add_layout(&AddLayout { name, kind, copies, columns, unit, members })?
            }
            (None, None) if copies.is_none() && columns.is_none() && unit.is_none() => {
                match <[String; 1]>::try_from(paths) {
                    Ok([path]) => session.client.add_pv(&add(path))?,
                    Err(paths) => {
                        let text = format!("add {}: add them one by one, or with --layout", paths.join(", "));
                        return Err(invalid(text));
                    }
                }
            }
            _ => {
                return Err(invalid(
                    "--name, --copies, --columns and --unit are for --layout mirror or raid5".into(),
                ));
            }
        };
        session.output.show(&pv, |pv| format!("added {}: {}, number {}", pv.path, Size(pv.size), pv.id))
    }
}

fn invalid(message: String) -> Failure {
    ErrorBody { kind: ErrorKind::Invalid, message }.into()
}

/// Commands about members of layouts.
#[derive(Debug, Subcommand)]
pub(crate) enum Members {
    /// List mirrors, RAID-5, and the state of their members
    Layouts,
    /// List the disks that wait for a member of a mirror or RAID-5 to fail
    Spares,
    /// Put another disk in the place of a member of a mirror or RAID-5
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace {
        /// Path of the member, as pool layouts lists it
        old: String,
        /// Path of the new disk: a file name in the data directory, or an absolute path
        new: String,
        /// Create a sparse file of this size
        #[arg(long)]
        size: Option<Size>,
        /// Use the disk even if it holds data, which is lost
        #[arg(long)]
        force: bool,
        /// Copy at most so many bytes per second: 0 for no limit [default: serve --rebuild-rate
        /// decides]
        #[arg(long, value_name = "SIZE")]
        rate: Option<Size>,
    },
    /// Give a member of a mirror or RAID-5 its content again
    #[command(after_help = ONLINE_EXAMPLES)]
    Online {
        /// Path of the member, as pool layouts lists it
        member: String,
        /// Copy at most so many bytes per second: 0 for no limit [default: serve --rebuild-rate
        /// decides]
        #[arg(long, value_name = "SIZE")]
        rate: Option<Size>,
    },
    /// Stop reading and writing a member of a mirror or RAID-5, or stop its rebuild
    Offline {
        /// Path of the member, as pool layouts lists it
        member: String,
    },
}

pub(crate) fn run(command: Members, session: &Session) -> Result<(), Failure> {
    let change = |member: &str, state, onto, rate: Option<Size>| {
        let rate = rate.map(|rate| rate.0);
        session.client.patch_member(member, &PatchMember { state, onto, rate })
    };
    let layout = match command {
        Members::Layouts => {
            let pvs: Vec<Pv> = session.client.pvs()?.into_iter().filter(|pv| pv.layout.is_some()).collect();
            return session.output.show(&pvs, |pvs| {
                let rows = pvs.iter().filter_map(|pv| Some((pv, pv.layout.as_ref()?)));
                table(rows.map(|(pv, layout)| (layout, Some(pv.size))))
            });
        }
        Members::Spares => return session.output.show(&session.client.spares()?, |disks| spares(disks)),
        Members::Replace { old, new, size, force, rate } => {
            let onto = AddPv { path: new, size: size.map(|size| size.0), force };
            change(&old, MemberTarget::In, Some(onto), rate)?
        }
        Members::Online { member, rate } => change(&member, MemberTarget::In, None, rate)?,
        Members::Offline { member } => change(&member, MemberTarget::Out, None, None)?,
    };
    session.output.show(&layout, |layout| table([(layout, None)]))
}

fn spares(disks: &[SpareDisk]) -> String {
    let row = |disk: &SpareDisk| {
        vec![disk.path.clone(), Size(disk.size).to_string(), disk.problem.clone().unwrap_or_default()]
    };
    list(&["SPARE", "SIZE", "NOTE"], &[1], disks.iter().map(row))
}

/// Says how many disks have what.
fn shape(layout: &PvLayout) -> String {
    let width = match layout.kind {
        LayoutKind::Mirror => layout.copies.unwrap_or(0).to_string(),
        LayoutKind::Raid5 => format!("{}+1", layout.columns.unwrap_or(1).saturating_sub(1)),
    };
    format!("{} {width}", layout.kind.name())
}

/// Makes a table of members. `layouts` are layouts and their sizes.
fn table<'m>(layouts: impl IntoIterator<Item = (&'m PvLayout, Option<u64>)>) -> String {
    let rows = layouts.into_iter().flat_map(|(layout, size)| {
        layout.members.iter().map(move |member| {
            let note = match (member.state, &member.onto) {
                (MemberState::In, None) => String::new(),
                (_, Some(onto)) => {
                    let part = member.rebuilt.zip(size).filter(|(_, size)| *size > 0);
                    let part = part.map(|(done, size)| {
                        format!(", {} % stored", u128::from(done) * 100 / u128::from(size))
                    });
                    format!("rebuilt onto {onto}{}", part.unwrap_or_default())
                }
                (_, None) => member.reason.clone().unwrap_or_default(),
            };
            vec![
                layout.name.clone(),
                shape(layout),
                layout.survives.to_string(),
                member.path.clone(),
                Size(member.size).to_string(),
                member.state.name().into(),
                note,
            ]
        })
    });
    list(&["NAME", "LAYOUT", "SURVIVES", "MEMBER", "SIZE", "STATE", "NOTE"], &[2, 4], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::Member;

    #[test]
    fn a_table_of_members() {
        let member = |path: &str, state, onto: Option<&str>| Member {
            path: path.into(),
            size: 1 << 30,
            state,
            reason: (state != MemberState::In).then(|| "gone".into()),
            onto: onto.map(str::to_owned),
            rebuilt: onto.map(|_| 1 << 29),
        };
        let members = vec![
            member("a", MemberState::In, None),
            member("b", MemberState::Out, None),
            member("c", MemberState::Rebuilding, Some("d")),
        ];
        let mut layout = PvLayout {
            name: "m".into(),
            kind: LayoutKind::Mirror,
            copies: Some(2),
            columns: None,
            unit: None,
            survives: 0,
            members,
        };
        let text = table([(&layout, Some(1 << 30))]);
        for part in ["mirror 2", "gone", "rebuilt onto d, 50 % stored", "rebuilding"] {
            assert!(text.contains(part), "{text}");
        }
        (layout.kind, layout.copies, layout.columns) = (LayoutKind::Raid5, None, Some(4));
        assert!(table([(&layout, None)]).contains("raid5 3+1"));
    }
}
