//! FAT12, FAT16 and FAT32.

use crate::disk::Section;
use crate::failure::{Failure, Result};
use crate::file_system::{Bounds, Entries, FileSystem, Part, Take, last_name, parts, pass_on};
use crate::page::Page;
use fatfs::{DateTime, Dir, DirEntry, FatType, FsOptions, OemCpConverter};
use hindcast_api::{FileEntry, FileKind, name_bytes, name_text};
use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use std::io::{self, Read, Seek, SeekFrom};

/// An opened FAT file system.
pub(crate) struct Fat {
    fs: fatfs::FileSystem<Section>,
}

/// The code page of short names. The disk does not tell which one it is, so bytes beyond ASCII stay
/// bytes, as [`name_text`] shows them.
#[derive(Debug)]
struct CodePage;

impl OemCpConverter for CodePage {
    fn decode(&self, byte: u8) -> char {
        name_text(&[byte]).chars().next().unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    fn encode(&self, c: char) -> Option<u8> {
        match name_bytes(c.encode_utf8(&mut [0; 4]))[..] {
            [byte] => Some(byte),
            _ => None,
        }
    }
}

/// Returns the name of an entry: its long one if it has one. Bytes of a short name that are beyond
/// ASCII are as they are on the disk.
fn name_of(entry: &DirEntry<'_, Section>) -> Vec<u8> {
    let name = entry.file_name();
    match name.eq_ignore_ascii_case(&entry.short_file_name()) {
        true => name_bytes(&name),
        false => name.into_bytes(),
    }
}

/// A path of the file system leads here.
enum Found<'a> {
    Root(Dir<'a, Section>),
    Entry(DirEntry<'a, Section>),
}

impl Fat {
    pub(crate) fn open(section: &Section) -> Result<Self> {
        let fs = fatfs::FileSystem::new(section.clone(), FsOptions::new().oem_cp_converter(&CodePage));
        Ok(Fat { fs: fs.map_err(|e| failure(&e, "open the file system"))? })
    }

    /// Finds what is at a path. Names match in any case, as they do for the systems that write FAT;
    /// one that matches as it is comes first. Two files with one name are refused: which of them is
    /// meant is not known.
    fn find(&self, path: &[u8]) -> Result<Found<'_>> {
        let shown = name_text(path);
        let missing = || Failure::not_found(format!("{shown}: file not found"));
        let mut found = Found::Root(self.fs.root_dir());
        for name in parts(path) {
            let like = std::str::from_utf8(name).ok().map(str::to_lowercase);
            let dir = match found {
                Found::Root(dir) => dir,
                Found::Entry(entry) if entry.is_dir() => entry.to_dir(),
                Found::Entry(_) => return Err(missing()),
            };
            let (mut same, mut alike) = (None, None);
            for entry in dir.iter() {
                let entry = entry.map_err(|e| failure(&e, &shown))?;
                let is_like = |other: String| like.as_ref().is_some_and(|like| other.to_lowercase() == *like);
                if name_of(&entry) == name {
                    if same.is_some() {
                        let text = format!("{shown}: the directory has two files with this name");
                        return Err(Failure::unsupported(text));
                    }
                    same = Some(entry);
                } else if alike.is_none() && (is_like(entry.file_name()) || is_like(entry.short_file_name()))
                {
                    alike = Some(entry);
                }
            }
            found = Found::Entry(same.or(alike).ok_or_else(missing)?);
        }
        Ok(found)
    }
}

impl FileSystem for Fat {
    fn name(&self) -> &'static str {
        match self.fs.fat_type() {
            FatType::Fat12 => "fat12",
            FatType::Fat16 => "fat16",
            FatType::Fat32 => "fat32",
        }
    }

    fn label(&self) -> Option<String> {
        let label = self.fs.read_volume_label_from_root_dir().ok().flatten();
        let label = label.unwrap_or_else(|| self.fs.volume_label()).trim().to_owned();
        Some(label).filter(|label| !label.is_empty() && label != "NO NAME")
    }

    fn entry(&self, path: &[u8]) -> Result<FileEntry> {
        Ok(match self.find(path)? {
            Found::Root(_) => directory(last_name(b"/"), None),
            Found::Entry(entry) => described(&entry),
        })
    }

    fn list(&self, path: &[u8], bounds: &Bounds) -> Result<Entries> {
        let shown = name_text(path);
        let dir = match self.find(path)? {
            Found::Root(dir) => dir,
            Found::Entry(entry) if entry.is_dir() => entry.to_dir(),
            Found::Entry(_) => return Err(Failure::invalid(format!("{shown}: path is not a directory"))),
        };
        let mut page = Page::new(bounds.after.clone(), bounds.limit);
        for entry in dir.iter() {
            let entry = entry.map_err(|e| failure(&e, &shown))?;
            page.offer(&name_of(&entry), described(&entry));
        }
        let (found, has_more) = page.finish();
        Ok((found.into_iter().map(|(_, entry)| entry).collect(), has_more))
    }

    fn read(&self, path: &[u8], part: Part, take: Take<'_>) -> Result<()> {
        let Part { offset, length } = part;
        let shown = name_text(path);
        let entry = match self.find(path)? {
            Found::Entry(entry) if entry.is_file() => entry,
            _ => return Err(Failure::invalid(format!("{shown}: path is a directory"))),
        };
        if offset >= entry.len() {
            return Ok(());
        }
        let failed = |e: &io::Error| failure(e, &shown);
        let mut file = entry.to_file();
        file.seek(SeekFrom::Start(offset)).map_err(|e| failed(&e))?;
        pass_on(length, |out| file.read(out).map_err(|e| failed(&e)), take)
    }
}

fn directory(name: &[u8], modified: Option<Timestamp>) -> FileEntry {
    FileEntry {
        name: name_text(name),
        kind: FileKind::Directory,
        size: 0,
        mode: None,
        uid: None,
        gid: None,
        modified,
        target: None,
        id: None,
    }
}

fn described(entry: &DirEntry<'_, Section>) -> FileEntry {
    let shown = directory(&name_of(entry), moment(entry.modified()));
    if entry.is_dir() {
        return shown;
    }
    FileEntry { kind: FileKind::File, size: entry.len(), ..shown }
}

/// Returns a time of FAT, which has no zone, as if it were UTC. Returns `None` if it is no time.
fn moment(time: DateTime) -> Option<Timestamp> {
    let part = |value: u16| i8::try_from(value).ok();
    let (year, month, day) =
        (i16::try_from(time.date.year).ok()?, part(time.date.month)?, part(time.date.day)?);
    let (hour, minute, second) = (part(time.time.hour)?, part(time.time.min)?, part(time.time.sec)?);
    let at = civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    Some(at.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

fn failure(error: &io::Error, what: &str) -> Failure {
    Failure::of_io(error, |text| Failure::unsupported(format!("{what}: {text}")))
}
