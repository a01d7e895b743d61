//! `hindcast pool layouts`, `grow`, `replace`, `online`, `offline` and `spares`: mirrors, RAID-5,
//! their members, and disks that wait for one of them to fail.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::session::Session;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use hindcast_api::{
    AddLayout, AddPv, ErrorBody, ErrorKind, GrowPv, LayoutKind, Member, MemberState, MemberTarget,
    PatchMember, Pv, PvLayout, Size, SpareDisk,
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

The disk gets what has changed since it went out. `hindcast pool layouts` shows how much that is. If \
something else has written to the disk meanwhile, `hindcast pool replace /dev/vdb /dev/vdb --force` \
copies everything.";

const GROW_EXAMPLES: &str = "\
Examples:
  hindcast pool grow m1 /dev/vde                 the mirror m1 gets a disk more
  hindcast pool grow r1                          the disks of r1 were made larger
  hindcast pool grow /dev/vdb                    so was this one
  hindcast pool grow pv-0.img --size 20G         make this file larger, and use it

One more disk beside full ones brings space only when content has moved to it. `hindcast tasks` \
shows how much is left, and the space grows meanwhile.";

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
    #[arg(long, conflicts_with_all = ["layout", "name", "copies", "columns", "unit", "reserve"])]
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
    /// Keep space free for what so many disks of a mirror or RAID-5 have: the others take it over
    /// when one is out for ten minutes (serve --spare-after) [default: 0]
    #[arg(long, value_name = "DISKS")]
    reserve: Option<u64>,
    /// Let only volumes use it that are created for it (volume create --on)
    #[arg(long, conflicts_with = "spare")]
    dedicated: bool,
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
        let Addition { paths, layout, name, spare, copies, columns, unit, reserve, dedicated, size, force } =
            self;
        let add = |path: String| AddPv { path, size: size.map(|size| size.0), force, dedicated: false };
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
                session.client.add_layout(&AddLayout {
                    name,
                    kind,
                    copies,
                    columns,
                    unit,
                    reserve,
                    members,
                    dedicated,
                })?
            }
            (None, None) if copies.is_none() && columns.is_none() && unit.is_none() && reserve.is_none() => {
                match <[String; 1]>::try_from(paths) {
                    Ok([path]) => session.client.add_pv(&AddPv { dedicated, ..add(path) })?,
                    Err(paths) => {
                        let text = format!("add {}: add them one by one, or with --layout", paths.join(", "));
                        return Err(invalid(text));
                    }
                }
            }
            _ => {
                return Err(invalid(
                    "--name, --copies, --columns, --unit and --reserve are for --layout mirror or raid5"
                        .into(),
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
    Layouts(Listing),
    /// List the disks that wait for a member of a mirror or RAID-5 to fail
    Spares(Listing),
    /// Make a physical volume larger: with more disks in a mirror or RAID-5, or because its disks
    /// were made larger
    #[command(after_help = GROW_EXAMPLES)]
    Grow {
        /// Name of a mirror or RAID-5, or path or number of a physical volume
        pv: String,
        /// Disks that the mirror or RAID-5 gets: file names in the data directory, or absolute
        /// paths
        disks: Vec<String>,
        /// Create sparse files of this size; without disks: give the file of a plain physical
        /// volume this size
        #[arg(long)]
        size: Option<Size>,
        /// Use the disks even if they hold data, which is lost
        #[arg(long, requires = "disks")]
        force: bool,
        /// Copy at most so many bytes per second: 0 for no limit [default: serve --rebuild-rate
        /// decides]
        #[arg(long, value_name = "SIZE")]
        rate: Option<Size>,
    },
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
        Members::Layouts(listing) => {
            let pvs: Vec<Pv> = session.client.pvs()?.into_iter().filter(|pv| pv.layout.is_some()).collect();
            if session.output.is_json() {
                return session.output.json(&pvs);
            }
            let layouts = pvs.iter().filter_map(|pv| pv.layout.as_ref());
            return listing.show(session, layouts.flat_map(rows).collect(), COLUMNS);
        }
        Members::Grow { pv, disks, size, force, rate } => {
            let (of_disks, of_file) = if disks.is_empty() { (None, size) } else { (size, None) };
            let disk = |path| AddPv { path, size: of_disks.map(|size| size.0), force, dedicated: false };
            let disks = disks.into_iter().map(disk).collect();
            let how = GrowPv { disks, size: of_file.map(|size| size.0), rate: rate.map(|rate| rate.0) };
            return session.output.show(&session.client.grow_pv(&pv, &how)?, grown);
        }
        Members::Spares(listing) => return listing.show(session, session.client.spares()?, SPARE_COLUMNS),
        Members::Replace { old, new, size, force, rate } => {
            let onto = AddPv { path: new, size: size.map(|size| size.0), force, dedicated: false };
            change(&old, MemberTarget::In, Some(onto), rate)?
        }
        Members::Online { member, rate } => change(&member, MemberTarget::In, None, rate)?,
        Members::Offline { member } => change(&member, MemberTarget::Out, None, None)?,
    };
    match session.output.is_json() {
        true => session.output.json(&layout),
        false => Listing::default().show(session, rows(&layout), COLUMNS),
    }
}

const SPARE_COLUMNS: &[Column<SpareDisk>] = &[
    Column { name: "spare", usual: true, cell: |spare| Cell::text(&spare.path) },
    Column { name: "size", usual: true, cell: |spare| Cell::Size(Some(spare.size)) },
    Column {
        name: "note",
        usual: true,
        cell: |spare| Cell::text(spare.problem.as_deref().unwrap_or_default()),
    },
];

/// Says how large a physical volume is that was told to grow.
fn grown(pv: &Pv) -> String {
    let Some(growth) = pv.layout.as_ref().and_then(|layout| layout.growth) else {
        return format!("{}: {}", pv.path, Size(pv.size));
    };
    let when = match growth.moves {
        0 => "in a moment".to_owned(),
        moves => format!("when {} have moved; see `hindcast tasks`", Size(moves)),
    };
    format!("{}: {} now, {} {when}", pv.path, Size(pv.size), Size(growth.size))
}

/// Says how many disks have what.
fn shape(layout: &PvLayout) -> String {
    let width = match layout.kind {
        LayoutKind::Mirror => layout.copies.unwrap_or(0).to_string(),
        LayoutKind::Raid5 => format!("{}+1", layout.columns.unwrap_or(1).saturating_sub(1)),
    };
    format!("{} {width}", layout.kind.name())
}

/// A member in a list.
#[derive(serde::Serialize)]
struct Row {
    name: String,
    layout: String,
    survives: u64,
    member: String,
    size: u64,
    state: &'static str,
    note: String,
}

/// Returns the members of a layout.
fn rows(layout: &PvLayout) -> Vec<Row> {
    let row = |member: &Member| {
        let note = match (member.state, &member.onto) {
            (MemberState::In, None) => String::new(),
            (_, Some(onto)) => {
                let part = member.rebuilt.zip(member.left).map(|(done, left)| {
                    let percent = u128::from(done) * 100 / (u128::from(done) + u128::from(left)).max(1);
                    format!(", {percent} % done, {} left", Size(left))
                });
                let time = member.seconds_left.map(|seconds| format!(", about {}", span(seconds)));
                format!("rebuilt onto {onto}{}{}", part.unwrap_or_default(), time.unwrap_or_default())
            }
            (MemberState::Out, None) if member.content == 0 => {
                let reason = member.reason.as_deref().unwrap_or_default();
                format!("{reason}; the others have taken over")
            }
            (_, None) => {
                let reason = member.reason.clone().unwrap_or_default();
                let changed = member.changed.map(|bytes| format!("; {} changed since", Size(bytes)));
                reason + &changed.unwrap_or_default()
            }
        };
        Row {
            name: layout.name.clone(),
            layout: shape(layout),
            survives: layout.survives,
            member: member.path.clone(),
            size: member.size,
            state: member.state.name(),
            note,
        }
    };
    layout.members.iter().map(row).collect()
}

const COLUMNS: &[Column<Row>] = &[
    Column { name: "name", usual: true, cell: |r| Cell::text(&r.name) },
    Column { name: "layout", usual: true, cell: |r| Cell::text(&r.layout) },
    Column { name: "survives", usual: true, cell: |r| Cell::number(r.survives) },
    Column { name: "member", usual: true, cell: |r| Cell::text(&r.member) },
    Column { name: "size", usual: true, cell: |r| Cell::Size(Some(r.size)) },
    Column { name: "state", usual: true, cell: |r| Cell::text(r.state) },
    Column { name: "note", usual: true, cell: |r| Cell::text(&r.note) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_members() {
        let member = |path: &str, state, onto: Option<&str>| Member {
            path: path.into(),
            size: 1 << 30,
            content: 1 << 30,
            changed: (state == MemberState::Out).then_some(3 << 20),
            state,
            reason: (state != MemberState::In).then(|| "gone".into()),
            onto: onto.map(str::to_owned),
            rebuilt: onto.map(|_| 1 << 29),
            left: onto.map(|_| 1 << 29),
            seconds_left: onto.map(|_| 200),
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
            reserve: 0,
            takes_over: false,
            members,
            growth: None,
        };
        let all = rows(&layout);
        let shown: Vec<_> = all.iter().map(|r| (&r.layout[..], r.state, &r.note[..])).collect();
        let rebuilt = "rebuilt onto d, 50 % done, 512 MiB left, about 3 min 20 s";
        assert_eq!(
            shown,
            [
                ("mirror 2", "in", ""),
                ("mirror 2", "out", "gone; 3 MiB changed since"),
                ("mirror 2", "rebuilding", rebuilt)
            ]
        );
        (layout.kind, layout.copies, layout.columns) = (LayoutKind::Raid5, None, Some(4));
        assert_eq!(rows(&layout)[0].layout, "raid5 3+1");
    }
}
