//! `hindcast files`: files in moments of a volume, without a mount.

mod compare;
mod copy;
mod place;

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::output::harmless;
use crate::session::Session;
use clap::Subcommand;
use hindcast_api::{FileEntry, FileKind, Partition};
use place::{Opened, Written};
use std::io::IsTerminal;
use std::path::PathBuf;

pub(crate) const READER: &str = hindcast_server::READER_COMMAND;

const EXAMPLES: &str = "\
Examples:
  hindcast files ls db@-1h:/etc                  a directory as it was an hour ago
  hindcast files cat db@-1h:/etc/fstab
  hindcast files cp db@10:41:/srv/report.odt .
  hindcast files cp -r db@nightly:/var/www ./www-then
  hindcast files diff db@-1h db@now              which files have changed since
  hindcast files partitions db@-1h               what is on the disk

ext2, ext3, ext4, FAT and NTFS can be read. A journal of ext3 and ext4 is applied in memory; the log \
of NTFS is not. For other file systems, attach the moment to a machine that knows them: hindcast view \
create. Nothing is mounted and nothing is written: a process of the server with no other rights reads \
the file system.";

const CP_EXAMPLES: &str = "\
Examples:
  hindcast files cp db@-1h:/etc/fstab .          into this directory, as fstab
  hindcast files cp db@-1h:/etc/fstab old-fstab
  hindcast files cp -r db@-1h:/var/www ./www-then

Times and permission bits come along; owners, set-user-ID and set-group-ID do not. Links below a \
directory are copied as links. What can't be copied is named and left out, and the exit code is 1 then: \
devices, pipes, sockets, reparse points of NTFS, files that can't be read.";

const DIFF_EXAMPLES: &str = "\
Examples:
  hindcast files diff db@-1h db@now
  hindcast files diff db@-1h:/etc db@now:/etc
  hindcast files diff db@nightly db@now --content -o json

Files are compared by kind, size, time of change, permission bits and owner. With --content, files of \
one size are also read and compared. A directory that is on one side only is one line.";

/// What `files ls`, `cat`, `cp` and `diff` have in common.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct On {
    /// Number of the partition, if the disk has several that can be read (hindcast files
    /// partitions)
    #[arg(long, value_name = "NUMBER")]
    partition: Option<u32>,
}

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Command {
    /// List a directory of a moment
    #[command(alias = "list")]
    Ls {
        /// VOLUME@MOMENT, or VOLUME@MOMENT:/PATH
        #[arg(value_name = "VOLUME@MOMENT:/PATH", value_parser = Written::parse)]
        place: Written,
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        listing: Listing,
    },
    /// Print a file of a moment
    Cat {
        /// VOLUME@MOMENT:/PATH
        #[arg(value_name = "VOLUME@MOMENT:/PATH", value_parser = Written::parse)]
        place: Written,
        #[command(flatten)]
        on: On,
    },
    /// Copy files and directories out of a moment
    #[command(after_help = CP_EXAMPLES)]
    Cp {
        /// VOLUME@MOMENT:/PATH
        #[arg(value_name = "VOLUME@MOMENT:/PATH", value_parser = Written::parse)]
        place: Written,
        /// Directory to copy into, or a name that does not exist yet
        #[arg(value_name = "TO")]
        to: PathBuf,
        /// Copy directories with all that is in them
        #[arg(short, long)]
        recursive: bool,
        /// Replace files that exist
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        on: On,
    },
    /// List the files that differ between two moments
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// VOLUME@MOMENT, or VOLUME@MOMENT:/PATH
        #[arg(value_name = "FROM", value_parser = Written::parse)]
        from: Written,
        /// VOLUME@MOMENT, or VOLUME@MOMENT:/PATH
        #[arg(value_name = "TO", value_parser = Written::parse)]
        to: Written,
        /// Compare the content of files of one size too
        #[arg(long)]
        content: bool,
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        listing: Listing,
    },
    /// List the partitions of a moment, and what they have
    Partitions {
        /// VOLUME@MOMENT
        #[arg(value_name = "VOLUME@MOMENT", value_parser = Written::parse)]
        place: Written,
        #[command(flatten)]
        listing: Listing,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    match command {
        Command::Ls { place, on, listing } => {
            let opened = Opened::new(session, &place, on.partition)?;
            let (itself, mut entries) = opened.list(&place.path)?;
            if itself.kind != FileKind::Directory {
                entries.push(itself);
            }
            listing.show(session, entries, FILES)
        }
        Command::Cat { place, on } => {
            let opened = Opened::new(session, &place, on.partition)?;
            opened.content(&place.path, &mut std::io::stdout().lock())?;
            Ok(())
        }
        Command::Cp { place, to, recursive, force, on } => {
            let opened = Opened::new(session, &place, on.partition)?;
            copy::copy(&opened, &place.path, &to, copy::How { recursive, force })
        }
        Command::Diff { from, to, content, on, listing } => {
            let (before, after) =
                (Opened::new(session, &from, on.partition)?, Opened::new(session, &to, on.partition)?);
            let found = compare::compare((&before, &from.path), (&after, &to.path), content)?;
            listing.show(session, found, compare::DIFFERENCES)
        }
        Command::Partitions { place, listing } => {
            let opened = Opened::new(session, &place, None)?;
            listing.show(session, opened.partitions()?, PARTITIONS)
        }
    }
}

/// Returns a name as a terminal may show it. For a pipe it is the name itself.
fn printable(name: &str) -> String {
    if std::io::stdout().is_terminal() { harmless(name) } else { name.to_owned() }
}

/// Returns the kind and the permission bits as `ls -l` shows them.
fn mode(entry: &FileEntry) -> String {
    let kind = match entry.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Other => '?',
    };
    let Some(mode) = entry.mode else { return kind.to_string() };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn owner(entry: &FileEntry) -> String {
    match (entry.uid, entry.gid) {
        (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
        _ => "-".into(),
    }
}

fn shown(entry: &FileEntry) -> String {
    let name = printable(&entry.name);
    match (&entry.target, entry.kind) {
        (Some(target), _) => format!("{name} -> {}", printable(target)),
        (None, FileKind::Directory) => format!("{name}/"),
        (None, _) => name,
    }
}

const FILES: &[Column<FileEntry>] = &[
    Column { name: "mode", usual: true, cell: |f| Cell::text(mode(f)) },
    Column { name: "owner", usual: true, cell: |f| Cell::text(owner(f)) },
    Column {
        name: "size",
        usual: true,
        cell: |f| Cell::Size(Some(f.size).filter(|_| f.kind == FileKind::File)),
    },
    Column { name: "modified", usual: true, cell: |f| Cell::Time(f.modified) },
    Column { name: "file", usual: true, cell: |f| Cell::text(shown(f)) },
    Column { name: "name", usual: false, cell: |f| Cell::text(printable(&f.name)) },
];

const PARTITIONS: &[Column<Partition>] = &[
    Column { name: "number", usual: true, cell: |p| Cell::number(u64::from(p.number)) },
    Column { name: "name", usual: true, cell: |p| Cell::text(printable(p.name.as_deref().unwrap_or("-"))) },
    Column { name: "size", usual: true, cell: |p| Cell::Size(Some(p.size)) },
    Column { name: "content", usual: true, cell: |p| Cell::text(p.content.as_deref().unwrap_or("-")) },
    Column { name: "label", usual: true, cell: |p| Cell::text(printable(p.label.as_deref().unwrap_or("-"))) },
    Column { name: "readable", usual: true, cell: |p| Cell::text(crate::output::yes_no(p.readable)) },
    Column { name: "start", usual: false, cell: |p| Cell::number(p.start) },
    Column { name: "problem", usual: false, cell: |p| Cell::text(p.problem.as_deref().unwrap_or("-")) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_shows_them() {
        let entry = |kind, mode| FileEntry {
            name: "x".into(),
            kind,
            size: 0,
            mode,
            uid: None,
            gid: None,
            modified: None,
            target: None,
            id: None,
        };
        assert_eq!(mode(&entry(FileKind::File, Some(0o644))), "-rw-r--r--");
        assert_eq!(mode(&entry(FileKind::File, Some(0o4755))), "-rwsr-xr-x");
        assert_eq!(mode(&entry(FileKind::Directory, Some(0o1776))), "drwxrwxrwT");
        assert_eq!(mode(&entry(FileKind::Directory, None)), "d");
    }
}
