//! NTFS. Its log is not played back: a moment between two writes of the guest may show a directory
//! as it was before.

use crate::disk::Section;
use crate::failure::{Failure, FailureKind, Result};
use crate::file_system::{Bounds, Entries, FileSystem, Part, Take, last_name, parts, pass_on, unknown};
use crate::page::Page;
use hindcast_api::{FileEntry, FileKind, name_text};
use jiff::Timestamp;
use ntfs::attribute_value::NtfsAttributeValue;
use ntfs::indexes::NtfsFileNameIndex;
use ntfs::structured_values::{NtfsFileAttributeFlags, NtfsFileName, NtfsFileNamespace};
use ntfs::{
    Ntfs, NtfsAttribute, NtfsAttributeFlags, NtfsError, NtfsFile, NtfsFileFlags, NtfsFileReference,
    NtfsReadSeek, NtfsTime,
};
use std::io::SeekFrom;

/// Records below this number are the file system's own: `$MFT` and others.
const FIRST_USER_RECORD: u64 = 24;
/// Record of the root directory.
const ROOT: u64 = 5;
/// Unit in which records are protected against torn writes, in bytes.
const SECTOR: u64 = 512;
/// Intervals of 100 ns between 1601, where times of NTFS begin, and 1970.
const FROM_1601_TO_1970: i128 = 116_444_736_000_000_000;

/// An opened NTFS file system.
pub(crate) struct NtfsVolume {
    ntfs: Ntfs,
    disk: Section,
    label: Option<String>,
}

impl NtfsVolume {
    pub(crate) fn open(section: &Section) -> Result<Self> {
        let mut disk = section.clone();
        let failed = |e: NtfsError| failure(&e, "open the file system");
        let mut ntfs = Ntfs::new(&mut disk).map_err(failed)?;
        ntfs.read_upcase_table(&mut disk).map_err(failed)?;
        let name = ntfs.volume_name(&mut disk).and_then(|name| name.ok());
        let label = name.map(|name| name.name().to_string_lossy()).filter(|name| !name.is_empty());
        Ok(NtfsVolume { ntfs, disk, label })
    }

    /// Finds the file at a path. Names match in any case.
    fn find(&self, path: &[u8]) -> Result<NtfsFile<'_>> {
        let mut disk = self.disk.clone();
        let shown = name_text(path);
        let failed = |e: NtfsError| failure(&e, &shown);
        let missing = || Failure::not_found(format!("{shown}: file not found"));
        let mut file = self.ntfs.file(&mut disk, ROOT).map_err(failed)?;
        for name in parts(path) {
            let name = std::str::from_utf8(name).map_err(|_| missing())?;
            if !file.is_directory() {
                return Err(missing());
            }
            let reference = self.look_up(&file, name).map_err(failed)?.ok_or_else(missing)?;
            file = self.open_file(reference, &shown)?;
        }
        Ok(file)
    }

    /// Returns the file that a reference means. A record that was freed or used again since is
    /// another file: the directory and the record did not reach the disk together.
    fn open_file(&self, reference: NtfsFileReference, shown: &str) -> Result<NtfsFile<'_>> {
        let mut disk = self.disk.clone();
        let file = reference.to_file(&self.ntfs, &mut disk).map_err(|e| failure(&e, shown))?;
        let is_it = file.sequence_number() == reference.sequence_number()
            && file.flags().contains(NtfsFileFlags::IN_USE);
        match is_it {
            true => Ok(file),
            false => {
                Err(Failure::unsupported(format!("{shown}: the directory names a record of another file")))
            }
        }
    }

    /// Returns a number of 8 bytes in a record.
    fn number(&self, at: u64) -> Result<u64> {
        let bytes = self.disk.bytes_at::<8>(at)?;
        let bytes =
            bytes.ok_or_else(|| Failure::unsupported("read a file: its record is not on the disk"))?;
        // The last two bytes of a sector are replaced while it is on the disk. They are the highest
        // ones of the number.
        let highest = if at % SECTOR == SECTOR - 8 { u64::MAX >> 16 } else { u64::MAX };
        Ok(u64::from_le_bytes(bytes) & highest)
    }

    /// Checks that an attribute is the beginning of a file's content. If several records describe
    /// the content, the parser may return a later one.
    fn check_first(&self, attribute: &NtfsAttribute<'_, '_>, shown: &str) -> Result<()> {
        let Some(place) = attribute.position().value().filter(|_| !attribute.is_resident()) else {
            return Ok(());
        };
        // Lowest virtual cluster of a non-resident attribute.
        match self.number(place.get() + 0x10)? {
            0 => Ok(()),
            _ => Err(Failure::unsupported(format!("{shown}: the file is too scattered to be read here"))),
        }
    }

    /// Returns the file of a name in a directory. The index finds a name in any case. If that is
    /// not the name itself, another file may have it.
    fn look_up(
        &self,
        directory: &NtfsFile<'_>,
        name: &str,
    ) -> std::result::Result<Option<NtfsFileReference>, NtfsError> {
        let mut disk = self.disk.clone();
        let index = directory.directory_index(&mut disk)?;
        let mut finder = index.finder();
        let Some(found) = NtfsFileNameIndex::find(&mut finder, &self.ntfs, &mut disk, name) else {
            return Ok(None);
        };
        let found = found?;
        let is_named = |key: Option<std::result::Result<NtfsFileName, NtfsError>>| match key {
            Some(key) => key.map(|key| key.name() == name),
            None => Ok(false),
        };
        let like = found.file_reference();
        if is_named(found.key())? {
            return Ok(Some(like));
        }
        let mut entries = index.entries();
        while let Some(entry) = entries.next(&mut disk) {
            let entry = entry?;
            if is_named(entry.key())? {
                return Ok(Some(entry.file_reference()));
            }
        }
        Ok(Some(like))
    }

    /// Returns the length of the beginning of an attribute that was ever written. What follows is
    /// allocated, and is zeros for a reader. The parser does not tell it, so this reads the header
    /// of the attribute (offset 0x38 where the content is outside the record).
    fn written(&self, attribute: &NtfsAttribute<'_, '_>) -> Result<u64> {
        let Some(place) = attribute.position().value().filter(|_| !attribute.is_resident()) else {
            return Ok(u64::MAX);
        };
        self.number(place.get() + 0x38)
    }

    /// Describes a file. The sizes and times in directories may be old, so its own record counts.
    fn described(&self, name: &str, file: &NtfsFile<'_>) -> Result<FileEntry> {
        let mut disk = self.disk.clone();
        let info = file.info().map_err(|e| failure(&e, name))?;
        let is_link = info.file_attributes().contains(NtfsFileAttributeFlags::REPARSE_POINT);
        let kind = match (is_link, file.is_directory()) {
            (true, _) => FileKind::Other,
            (false, true) => FileKind::Directory,
            (false, false) => FileKind::File,
        };
        let mut size = 0;
        if kind == FileKind::File
            && let Some(data) = file.data(&mut disk, "")
        {
            let data = data.map_err(|e| failure(&e, name))?;
            let attribute = data.to_attribute().map_err(|e| failure(&e, name))?;
            // A scattered file is shown, and not taken for an empty one.
            if self.check_first(&attribute, name).is_err() {
                return Ok(FileEntry { id: Some(file.file_record_number()), ..unknown(name.as_bytes()) });
            }
            size = attribute.value_length();
        }
        let modified = moment(info.modification_time());
        let (mode, uid, gid, target) = (None, None, None, None);
        let id = Some(file.file_record_number());
        Ok(FileEntry { name: name.to_owned(), kind, size, mode, uid, gid, modified, target, id })
    }
}

impl FileSystem for NtfsVolume {
    fn name(&self) -> &'static str {
        "ntfs"
    }

    fn label(&self) -> Option<String> {
        self.label.clone()
    }

    fn entry(&self, path: &[u8]) -> Result<FileEntry> {
        self.described(&name_text(last_name(path)), &self.find(path)?)
    }

    fn list(&self, path: &[u8], bounds: &Bounds) -> Result<Entries> {
        let mut disk = self.disk.clone();
        let shown = name_text(path);
        let failed = |e: NtfsError| failure(&e, &shown);
        let directory = self.find(path)?;
        if !directory.is_directory() {
            return Err(Failure::invalid(format!("{shown}: path is not a directory")));
        }
        let index = directory.directory_index(&mut disk).map_err(failed)?;
        let mut page = Page::new(bounds.after.clone(), bounds.limit);
        let mut entries = index.entries();
        while let Some(entry) = entries.next(&mut disk) {
            let entry = entry.map_err(failed)?;
            let Some(key) = entry.key() else { continue };
            let key = key.map_err(failed)?;
            let number = entry.file_reference().file_record_number();
            if key.namespace() != NtfsFileNamespace::Dos && number >= FIRST_USER_RECORD {
                page.offer(key.name().to_string_lossy().as_bytes(), entry.file_reference());
            }
        }
        let (found, has_more) = page.finish();
        let mut listed = Vec::with_capacity(found.len());
        for (name, reference) in found {
            let shown = name_text(&name);
            let entry = self.open_file(reference, &shown).and_then(|file| self.described(&shown, &file));
            listed.push(match entry {
                Err(failure) if failure.kind == FailureKind::Disk => return Err(failure),
                entry => entry.unwrap_or_else(|_| unknown(&name)),
            });
        }
        Ok((listed, has_more))
    }

    fn read(&self, path: &[u8], part: Part, take: Take<'_>) -> Result<()> {
        let Part { offset, length } = part;
        let mut disk = self.disk.clone();
        let shown = name_text(path);
        let failed = |e: NtfsError| failure(&e, &shown);
        let file = self.find(path)?;
        if file.is_directory() {
            return Err(Failure::invalid(format!("{shown}: path is a directory")));
        }
        let Some(data) = file.data(&mut disk, "") else { return Ok(()) };
        let data = data.map_err(failed)?;
        let attribute = data.to_attribute().map_err(failed)?;
        self.check_first(&attribute, &shown)?;
        let flags = attribute.flags();
        for (flag, what) in
            [(NtfsAttributeFlags::COMPRESSED, "compressed"), (NtfsAttributeFlags::ENCRYPTED, "encrypted")]
        {
            if flags.contains(flag) {
                return Err(Failure::unsupported(format!("{shown}: the file is {what} by NTFS")));
            }
        }
        let mut value: NtfsAttributeValue<'_, '_> = attribute.value(&mut disk).map_err(failed)?;
        let (size, written) = (value.len(), self.written(&attribute)?.min(value.len()));
        value.seek(&mut disk, SeekFrom::Start(offset.min(written))).map_err(failed)?;
        let mut at = offset;
        let next = |out: &mut [u8]| {
            let end = if at < written { written } else { size };
            let most = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(out.len());
            let read = match at < written {
                true => value.read(&mut disk, &mut out[..most]).map_err(failed)?,
                false => {
                    out[..most].fill(0);
                    most
                }
            };
            at += read as u64;
            Ok(read)
        };
        pass_on(length, next, take)
    }
}

/// Returns a time of NTFS, or `None` if it is out of range.
fn moment(time: NtfsTime) -> Option<Timestamp> {
    let since_1970 = i128::from(time.nt_timestamp()) - FROM_1601_TO_1970;
    Timestamp::from_nanosecond(since_1970 * 100).ok()
}

fn failure(error: &NtfsError, what: &str) -> Failure {
    let or = |text: String| Failure::unsupported(format!("{what}: {text}"));
    match error {
        NtfsError::Io(error) => Failure::of_io(error, or),
        other => or(other.to_string()),
    }
}
