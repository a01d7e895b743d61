//! Labels of physical volumes: the first block names the owner. [Stamps](crate::space::stamp) lie
//! behind it.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `HINDCAST` |
//! | 8..12 | CRC32C of bytes 12..4096 |
//! | 12..16 | format version |
//! | 16..32 | pool UUID |
//! | 32..48 | PV UUID |
//! | 48..52 | PV number |
//! | 52..56 | number of extents when it was added |
//! | 56..64 | extent size in bytes |
//!
//! Data begins at [`DATA_START`], so that extents are well aligned on any device.

use super::stamp::{self, Bearer, HEAD_LEN};
use crate::catalog::StampRecord;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::{Cause, Disk, SyncPurpose};
use crate::error::{Error, Result, invalid};
use std::io;
use uuid::Uuid;

/// Byte offset of extent 0.
pub(crate) const DATA_START: u64 = 1 << 20;
/// Number of bytes of the label block.
pub(crate) const LABEL_LEN: usize = 4096;
const MAGIC: &[u8; 8] = b"HINDCAST";
const VERSION: u32 = 1;

/// A decoded label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) pool: Uuid,
    pub(crate) pv_uuid: Uuid,
    pub(crate) pv: u32,
    pub(crate) extents: u32,
    pub(crate) extent_size: u64,
}

/// The content of a disk's first block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LabelFound {
    /// No label.
    None,
    /// A label that does not verify, or that has an unknown version.
    Damaged,
    /// A label.
    Label(Label),
}

impl Label {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&self.pool).uuid(&self.pv_uuid);
        w.u32(self.pv).u32(self.extents).u64(self.extent_size);
        w.0.resize(LABEL_LEN, 0);
        let crc = crc32c(&w.0[12..]);
        w.0[8..12].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    pub(crate) fn decode(block: &[u8]) -> LabelFound {
        if block.get(..8) != Some(MAGIC) {
            return LabelFound::None;
        }
        Self::decode_fields(block).map_or(LabelFound::Damaged, LabelFound::Label)
    }

    fn decode_fields(block: &[u8]) -> Option<Label> {
        let block = block.get(..LABEL_LEN)?;
        let mut r = Reader::new(&block[8..]);
        let crc = r.u32()?;
        if crc != crc32c(&block[12..]) || r.u32()? != VERSION {
            return None;
        }
        Some(Label {
            pool: r.uuid()?,
            pv_uuid: r.uuid()?,
            pv: r.u32()?,
            extents: r.u32()?,
            extent_size: r.u64()?,
        })
    }

    /// Reads the label of `disk`.
    pub(crate) fn read(disk: &dyn Disk, path: &str) -> Result<LabelFound> {
        let fail = |e| Error::io(format!("read the label of {path}"), e);
        if disk.len().map_err(fail)? < LABEL_LEN as u64 {
            return Ok(LabelFound::None);
        }
        let mut block = vec![0u8; LABEL_LEN];
        disk.read_at(&mut block, 0).map_err(fail)?;
        Ok(Label::decode(&block))
    }

    /// Returns whether the rest of an overwritten label proves that it was this one. Two of the
    /// magic and the two UUIDs prove it.
    pub(crate) fn remains_on(&self, disk: &dyn Disk, path: &str) -> Result<bool> {
        let mut block = vec![0; LABEL_LEN];
        disk.read_at(&mut block, 0).map_err(|e| Error::io(format!("read the label of {path}"), e))?;
        let whole = self.encode();
        let same = [0..8, 16..32, 32..48].into_iter().filter(|at| block[at.clone()] == whole[at.clone()]);
        Ok(same.count() >= 2)
    }

    /// Writes the label and a first stamp, and makes both durable.
    pub(crate) fn write(&self, disk: &dyn Disk, path: &str, stamp: &StampRecord) -> Result<()> {
        let mut head = self.encode();
        head.extend(stamp::first(&Bearer { pool: self.pool, pv_uuid: self.pv_uuid }, stamp));
        write_head(disk, path, &head)
    }

    /// Writes the label and makes it durable. Stamps stay as they are.
    pub(crate) fn write_alone(&self, disk: &dyn Disk, path: &str) -> Result<()> {
        write_head(disk, path, &self.encode())
    }
}

fn write_head(disk: &dyn Disk, path: &str, head: &[u8]) -> Result<()> {
    let _cause = Cause::Open.begin();
    let fail = |e| Error::io(format!("write the label of {path}"), e);
    disk.write_at(head, 0).map_err(fail)?;
    disk.sync(SyncPurpose::Label).map_err(fail)
}

/// Removes label and stamps of a disk that leaves the pool.
pub(crate) fn wipe(disk: &dyn Disk, path: &str) -> Result<()> {
    let _cause = Cause::Open.begin();
    let fail = |e| Error::io(format!("wipe the label of {path}"), e);
    disk.write_at(&[0; HEAD_LEN], 0).map_err(fail)?;
    wipe_backups(disk).map_err(fail)?;
    disk.sync(SyncPurpose::Label).map_err(fail)
}

/// Returns the number of whole extents that fit on a disk of `size` bytes, or an error if not even
/// one fits.
pub(crate) fn extents_on(size: u64, extent_size: u64, path: &str) -> Result<u32> {
    let extents = size.saturating_sub(DATA_START) / extent_size;
    if extents == 0 {
        return Err(invalid(format!(
            "use {path}: its {size} bytes are too few for one extent of {extent_size} bytes after the first {DATA_START}"
        )));
    }
    u32::try_from(extents).map_err(|_| {
        invalid(format!(
            "use {path}: {extents} extents are too many; use a smaller size, or a pool with larger extents"
        ))
    })
}

/// Returns the largest size of a physical volume of which all extents have numbers.
pub(crate) fn most_bytes(extent_size: u64) -> u64 {
    DATA_START.saturating_add(extent_size.saturating_mul(u32::MAX.into()))
}

/// Byte offset of a physical volume at which the first slot for a metadata backup begins.
pub(crate) const SLOTS_START: u64 = 64 << 10;

/// Clears the backup slots of a physical volume that leaves its pool. Only blocks that hold
/// something are written: a sparse file on a full file system has room for these, and for no more.
pub(crate) fn wipe_backups(disk: &dyn Disk) -> io::Result<()> {
    let mut block = vec![0; HEADER_LEN];
    for at in (SLOTS_START..DATA_START).step_by(HEADER_LEN) {
        disk.read_at(&mut block, at)?;
        if block.iter().any(|byte| *byte != 0) {
            block.fill(0);
            disk.write_at(&block, at)?;
        }
    }
    Ok(())
}

/// Number of bytes of a backup's header.
pub(crate) const HEADER_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_damage() {
        let label = Label {
            pool: Uuid::from_bytes([1; 16]),
            pv_uuid: Uuid::from_bytes([2; 16]),
            pv: 3,
            extents: 4,
            extent_size: 1 << 22,
        };
        let block = label.encode();
        let hex: String = block[..64].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "48494e44434153543ad7bb4901000000010101010101010101010101010101010202020202020202020202020202020203000000040000000000400000000000"
        );
        assert_eq!(Label::decode(&block), LabelFound::Label(label));
        for byte in 8..LABEL_LEN {
            let mut bad = block.clone();
            bad[byte] ^= 4;
            assert_eq!(Label::decode(&bad), LabelFound::Damaged, "byte {byte}");
        }
        assert_eq!(Label::decode(&[0; LABEL_LEN]), LabelFound::None);
        assert_eq!(Label::decode(&block[..100]), LabelFound::Damaged);
        assert_eq!(Label::decode(&[]), LabelFound::None);
    }

    #[test]
    fn sizes() {
        assert!(extents_on(DATA_START + 100, 4096, "x").is_err());
        assert_eq!(extents_on(DATA_START + 8192 + 1, 4096, "x").unwrap(), 2);
        assert!(extents_on(0, 4096, "x").is_err());
    }
}
