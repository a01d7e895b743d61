//! Little-endian encoding of small values, with a reader that can't run past its end or panic.

use uuid::Uuid;

/// CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of every structure on disk.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Returns the CRC-32/MEF of `data`. It is for data that contains sums already: our own structures,
/// and what clients write. A CRC32C of data that ends in its own CRC32C detects nothing, because it
/// is equal for all such data of one length.
pub(crate) fn outer_sum(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Mef, data) as u32
}

/// Returns the [`outer_sum`] of parts that follow one another.
pub(crate) fn outer_sum_of(parts: &[&[u8]]) -> u32 {
    let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Mef);
    parts.iter().for_each(|part| sum.update(part));
    sum.finalize() as u32
}

/// A writer of little-endian values into a buffer.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    pub(crate) fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
    pub(crate) fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
    pub(crate) fn u64(&mut self, v: impl Into<u64>) -> &mut Self {
        self.bytes(&v.into().to_le_bytes())
    }
    pub(crate) fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.0.extend_from_slice(v);
        self
    }
    pub(crate) fn uuid(&mut self, v: &Uuid) -> &mut Self {
        self.bytes(v.as_bytes())
    }
    /// Appends the length of a string of at most 65,535 bytes, and the string.
    pub(crate) fn string(&mut self, v: &str) -> &mut Self {
        debug_assert!(v.len() <= u16::MAX as usize);
        self.u16(v.len() as u16).bytes(v.as_bytes())
    }
}

/// Takes little-endian values from a buffer. Every method returns `None` once the buffer is too
/// short or malformed.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Reader(data)
    }
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    pub(crate) fn uuid(&mut self) -> Option<Uuid> {
        self.array().map(Uuid::from_bytes)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|a| a[0])
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64<T: From<u64>>(&mut self) -> Option<T> {
        self.array().map(u64::from_le_bytes).map(T::from)
    }
    pub(crate) fn string(&mut self) -> Option<String> {
        let n = self.u16()? as usize;
        String::from_utf8(self.take(n)?.to_vec()).ok()
    }
    /// Returns `value` if no byte is left over.
    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Rounds `v` up to a multiple of `unit`, a power of two.
pub(crate) fn align_up(v: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    (v + unit - 1) & !(unit - 1)
}
