//! Records to measure with. A caller with a clock measures how long decoding and applying a record
//! takes.

use crate::cdp::log::codec::{Packer, unpack};
use crate::cdp::log::record::{HEADER_LEN, IndexEntry};
use crate::cdp::log::segment::SegmentDisk;
use crate::error::{Error, Result, invalid};
use crate::settings::{Compression, Encoding};

/// A CDP record as it is stored, to measure with.
#[derive(Debug, Clone)]
pub struct CdpSample {
    encoding: Encoding,
    compression: Compression,
    raw: usize,
    packed: Vec<u8>,
}

impl CdpSample {
    /// Makes the record of a write that replaces `old` by `new`, which has equal length.
    pub fn of(encoding: Encoding, compression: Compression, old: &[u8], new: &[u8]) -> Result<CdpSample> {
        if old.len() != new.len() {
            return Err(invalid("make a record: old and new content differ in length"));
        }
        let mut packed = Vec::new();
        encoding.put_payload(old, new, &mut packed);
        let compression = Packer::new(compression)?.pack(&mut packed, 0);
        Ok(CdpSample { encoding, compression, raw: old.len(), packed })
    }

    /// Reads a record of the log.
    pub(crate) fn read(file: &SegmentDisk, entry: &IndexEntry) -> Result<CdpSample> {
        let mut packed = vec![0; entry.stored as usize];
        let failed = |e| Error::io("read a CDP record", e);
        file.disk.read_at(&mut packed, u64::from(entry.at) + HEADER_LEN as u64).map_err(failed)?;
        let (encoding, compression) = (entry.encoding, entry.compression);
        Ok(CdpSample { encoding, compression, raw: entry.raw_len(), packed })
    }

    /// Returns the number of bytes that the record changes.
    pub fn raw(&self) -> usize {
        self.raw
    }

    /// Returns the bytes that the record takes in the log.
    pub fn stored(&self) -> usize {
        HEADER_LEN + self.packed.len()
    }

    /// Returns the uncompressed payload, or `None` if it is damaged.
    pub fn decode(&self) -> Option<Vec<u8>> {
        unpack(self.compression, &self.packed, self.raw)
    }

    /// Applies the record to `content`, which is as long as `payload`.
    pub fn apply(&self, content: &mut [u8], payload: &[u8]) {
        self.encoding.apply(content, payload);
    }
}
