//! What a section of a disk contains, by the marks that its format has at fixed places.

use crate::disk::Section;
use crate::failure::Failure;

/// What a section contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// ext2, ext3 or ext4, by name.
    Ext(&'static str),
    /// FAT12, FAT16 or FAT32.
    Fat,
    Ntfs,
    /// Something whose files the reader can't read, by name.
    Other(&'static str),
}

/// Marks of formats: offset, bytes, and name.
const MARKS: [(u64, &[u8], &str); 17] = [
    (0, b"XFSB", "xfs"),
    (0, b"LUKS\xba\xbe", "luks"),
    (3, b"EXFAT   ", "exfat"),
    (3, b"-FVE-FS-", "bitlocker"),
    (0, b"hsqs", "squashfs"),
    (0x200, b"LABELONE", "lvm"),
    (0, b"LABELONE", "lvm"),
    (0xff6, b"SWAPSPACE2", "swap"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
    (0x400, b"\xe2\xe1\xf5\xe0", "erofs"),
    (0x1000, &[0xfc, 0x4e, 0x2b, 0xa9], "linux raid"),
    (0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], "bcache"),
    (0x8001, b"CD001", "iso9660"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (0x20, b"NXSB", "apfs"),
    (0x400, b"H+\0\x04", "hfs+"),
    (0x20000 + 0x408, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], "zfs"),
];

/// Offset of the superblock of ext2, ext3 and ext4.
const EXT: u64 = 1024;

/// Returns what a section contains, or `None` if nothing is known.
pub(crate) fn recognize(section: &Section) -> Result<Option<Content>, Failure> {
    if let Some(name) = ext(section)? {
        return Ok(Some(Content::Ext(name)));
    }
    for (offset, mark, name) in MARKS {
        let mut found = vec![0; mark.len()];
        let end = offset + mark.len() as u64;
        if end <= section.size() {
            section.read_at(offset, &mut found)?;
            if found == mark {
                return Ok(Some(Content::Other(name)));
            }
        }
    }
    let Some(boot) = section.bytes_at::<512>(0)? else { return Ok(None) };
    if boot[3..11] == *b"NTFS    " {
        return Ok(Some(Content::Ntfs));
    }
    Ok(is_fat(&boot).then_some(Content::Fat))
}

/// Returns the name of the version, if the section has a superblock of ext2 to ext4 (Linux,
/// Documentation/filesystems/ext4: `s_magic`, `s_feature_compat`, `s_feature_incompat`).
fn ext(section: &Section) -> Result<Option<&'static str>, Failure> {
    let Some(superblock) = section.bytes_at::<104>(EXT)? else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| superblock[at + i]));
    if superblock[0x38..0x3a] != [0x53, 0xef] {
        return Ok(None);
    }
    const HAS_JOURNAL: u32 = 0x4;
    const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200 | 0x8000;
    Ok(Some(match (word(0x5c) & HAS_JOURNAL != 0, word(0x60) & EXT4_ONLY != 0) {
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    }))
}

/// Returns whether a boot sector is that of a FAT file system (Microsoft, FAT specification,
/// section 3). A master boot record has none of these numbers.
fn is_fat(boot: &[u8; 512]) -> bool {
    let sector = u16::from_le_bytes([boot[11], boot[12]]);
    let cluster = boot[13];
    let reserved = u16::from_le_bytes([boot[14], boot[15]]);
    boot[510..] == [0x55, 0xaa]
        && matches!(boot[0], 0xeb | 0xe9)
        && matches!(sector, 512 | 1024 | 2048 | 4096)
        && cluster.is_power_of_two()
        && reserved > 0
        && matches!(boot[16], 1 | 2)
        && (boot[21] == 0xf0 || boot[21] >= 0xf8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::disk;

    fn with(offset: usize, mark: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 256 << 10];
        bytes[offset..offset + mark.len()].copy_from_slice(mark);
        bytes
    }

    #[test]
    fn formats_are_known_by_their_marks() {
        for (offset, mark, name) in MARKS {
            let found = recognize(&disk(with(offset as usize, mark))).unwrap();
            assert_eq!(found, Some(Content::Other(name)));
        }
        assert_eq!(recognize(&disk(with(0, b""))).unwrap(), None);
        assert_eq!(recognize(&disk(vec![0; 100])).unwrap(), None, "too small for anything");
        assert_eq!(recognize(&disk(with(3, b"NTFS    "))).unwrap(), Some(Content::Ntfs));
    }

    #[test]
    fn versions_of_ext_differ_by_features() {
        let mut bytes = with(1024 + 0x38, &[0x53, 0xef]);
        assert_eq!(recognize(&disk(bytes.clone())).unwrap(), Some(Content::Ext("ext2")));
        bytes[1024 + 0x5c] = 4;
        assert_eq!(recognize(&disk(bytes.clone())).unwrap(), Some(Content::Ext("ext3")));
        bytes[1024 + 0x60] = 0x40;
        assert_eq!(recognize(&disk(bytes)).unwrap(), Some(Content::Ext("ext4")));
    }
}
