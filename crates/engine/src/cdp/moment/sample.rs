//! Records to measure with: what decoding one and applying it takes is for somebody with a clock to
//! find out.

use crate::cdp::log::codec::{Packer, unpack};
use crate::cdp::log::record::{HEADER_LEN, IndexEntry};
use crate::cdp::log::segment::SegmentDisk;
use crate::error::{Error, Result, invalid};
use crate::settings::{Compression, Encoding};

/// A record as it is stored.
#[derive(Debug, Clone)]
pub struct CdpSample {
    encoding: Encoding,
    compression: Compression,
    raw: usize,
    packed: Vec<u8>,
}

impl CdpSample {
    /// The record of a write that replaces `old` by `new`, equally long.
    pub fn of(encoding: Encoding, compression: Compression, old: &[u8], new: &[u8]) -> Result<CdpSample> {
        if old.len() != new.len() {
            return Err(invalid("make a record: old and new content differ in length"));
        }
        let mut packed = Vec::new();
        encoding.put_payload(old, new, &mut packed);
        let compression = Packer::new(compression)?.pack(&mut packed, 0);
        Ok(CdpSample { encoding, compression, raw: old.len(), packed })
    }

    /// A record of the log.
    pub(crate) fn read(file: &SegmentDisk, entry: &IndexEntry) -> Result<CdpSample> {
        let mut packed = vec![0; entry.stored as usize];
        let failed = |e| Error::io("read a CDP record", e);
        file.disk.read_at(&mut packed, u64::from(entry.at) + HEADER_LEN as u64).map_err(failed)?;
        let (encoding, compression) = (entry.encoding, entry.compression);
        Ok(CdpSample { encoding, compression, raw: entry.raw_len(), packed })
    }

    /// Bytes that it is about.
    pub fn raw(&self) -> usize {
        self.raw
    }

    /// Bytes that it takes in the log.
    pub fn stored(&self) -> usize {
        HEADER_LEN + self.packed.len()
    }

    /// Its payload; `None` if it is damaged.
    pub fn decode(&self) -> Option<Vec<u8>> {
        unpack(self.compression, &self.packed, self.raw)
    }

    /// Takes `content`, as long as `payload`, over it.
    pub fn apply(&self, content: &mut [u8], payload: &[u8]) {
        self.encoding.apply(content, payload);
    }
}
