//! Memory that is aligned for direct I/O.

use std::ops::Deref;

/// The block size, in bytes, that direct I/O needs at most. Memory, place and length of direct I/O
/// are whole blocks.
pub(super) const BLOCK: usize = 4096;

/// Bytes that begin at a block, as long as there are no more of them than the capacity that was
/// asked for. A caller with more bytes pays for a copy, and for nothing else.
#[derive(Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    pub(crate) fn with_capacity(len: usize) -> Aligned {
        let mut memory: Vec<u8> = Vec::with_capacity(len + BLOCK);
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        memory.resize(start, 0);
        Aligned { memory, start }
    }

    /// Returns the buffer, to append to it.
    pub(crate) fn append(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.memory.truncate(self.start + len);
    }

    /// Fills the last block with zeros.
    pub(crate) fn pad(&mut self) {
        let len = self.len().next_multiple_of(BLOCK);
        self.memory.resize(self.start + len, 0);
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

/// Returns whether direct I/O can use the bytes where they are.
pub(super) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(BLOCK) == 0 && bytes.len().is_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_at_a_block_while_there_is_room() {
        for len in [1, 4096, 100_000] {
            let mut bytes = Aligned::with_capacity(len);
            assert!(bytes.is_empty());
            bytes.append().extend((0..len).map(|n| n as u8));
            assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0, "{len} bytes");
            let content = bytes.to_vec();
            bytes.pad();
            assert!(is_aligned(&bytes) || len % BLOCK != 0, "{len} bytes");
            assert_eq!(bytes.len(), len.next_multiple_of(BLOCK));
            bytes.append().extend_from_slice(&[7; 3 * BLOCK]);
            assert_eq!(&bytes[..len], content, "also where there was no room");
            bytes.truncate(len);
            assert_eq!(*bytes, content);
        }
        assert!(!is_aligned(&[0; 100]));
    }
}
