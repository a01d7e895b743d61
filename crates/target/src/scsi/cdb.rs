//! Fields of a command descriptor block (SPC-4 4.2). Numbers in a CDB are big-endian.

use super::sense::{Asc, Sense};

/// A CDB, padded with zeros to 16 bytes. Longer CDBs are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cdb(pub(crate) [u8; 16]);

impl Cdb {
    /// Creates a CDB from `bytes`. It ignores the bytes after the 16th.
    pub(crate) fn new(bytes: &[u8]) -> Cdb {
        let mut cdb = [0; 16];
        let n = bytes.len().min(16);
        cdb[..n].copy_from_slice(&bytes[..n]);
        Cdb(cdb)
    }

    /// Returns the operation code.
    pub(crate) fn code(&self) -> u8 {
        self.0[0]
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] & (1 << bit) != 0
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(crate) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.0[at], self.0[at + 1], self.0[at + 2]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        (u64::from(self.u32(at)) << 32) | u64::from(self.u32(at + 4))
    }

    /// Returns the length in bytes that the group of the operation code implies (SPC-4 4.2.5.1).
    pub(crate) fn group_len(&self) -> usize {
        match self.code() >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            _ => 16,
        }
    }
}

/// The range of blocks that a command addresses, in logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u64,
}

impl Blocks {
    /// Returns LOGICAL BLOCK ADDRESS and TRANSFER LENGTH. The 6, 10, 12 and 16 byte CDBs of SBC-3
    /// share these layouts.
    pub(crate) fn of(cdb: &Cdb) -> Blocks {
        match cdb.group_len() {
            6 => {
                let count = match cdb.u8(4) {
                    0 => 256,
                    n => u64::from(n),
                };
                Blocks { lba: u64::from(cdb.u24(1) & 0x1f_ffff), count }
            }
            10 => Blocks { lba: u64::from(cdb.u32(2)), count: u64::from(cdb.u16(7)) },
            12 => Blocks { lba: u64::from(cdb.u32(2)), count: u64::from(cdb.u32(6)) },
            _ => Blocks { lba: cdb.u64(2), count: u64::from(cdb.u32(10)) },
        }
    }

    /// Returns the offset and the length of the range in bytes. Returns an error if the range is
    /// not on a device of `size` bytes.
    pub(crate) fn on(self, size: u64, block_size: u32) -> Result<(u64, u64), Sense> {
        let blocks = size / u64::from(block_size);
        match self.lba.checked_add(self.count) {
            Some(end) if end <= blocks && (self.lba < blocks || self.count == 0) => {
                Ok((self.lba * u64::from(block_size), self.count * u64::from(block_size)))
            }
            _ => Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(self.lba.max(blocks))),
        }
    }
}
