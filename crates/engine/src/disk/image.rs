//! Sparse disk content in memory that shares pages between copies. [`super::MemDir`] and the
//! simulator keep their disks in it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The unit of storage and sharing, in bytes. A page that was never written takes no memory.
pub const PAGE: u64 = 4096;

/// The content of a disk. A clone shares the pages. A page is copied when one of its owners writes
/// to it.
#[derive(Debug, Clone, Default)]
pub struct Image {
    len: u64,
    /// The pages, by number. An absent page is zeros. All bytes past `len` are zero.
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
}

/// Splits `offset..offset + len` at page borders: (page, first byte in it, number of bytes).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let end = offset + len;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let start = (at % PAGE) as usize;
            let count = (PAGE - at % PAGE).min(end - at) as usize;
            let piece = (at / PAGE, start, count);
            at += count as u64;
            piece
        })
    })
}

impl Image {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buf`. Bytes past the end read as zeros.
    pub fn read(&self, buf: &mut [u8], offset: u64) {
        let mut rest = buf;
        for (page, start, count) in pieces(offset, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(count);
            match self.pages.get(&page) {
                Some(bytes) => now.copy_from_slice(&bytes[start..start + count]),
                None => now.fill(0),
            }
            rest = later;
        }
    }

    /// Writes `buf` at `offset`. The image grows as needed.
    pub fn write(&mut self, buf: &[u8], offset: u64) {
        let mut rest = buf;
        for (page, start, count) in pieces(offset, buf.len() as u64) {
            let (now, later) = rest.split_at(count);
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(bytes)[start..start + count].copy_from_slice(now);
            rest = later;
        }
        if !buf.is_empty() {
            self.len = self.len.max(offset + buf.len() as u64);
        }
    }

    /// Zeroes a range without changing the length.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let first = offset / PAGE;
        let last = (offset + len).div_ceil(PAGE);
        let touched: Vec<u64> = self.pages.range(first..last).map(|(page, _)| *page).collect();
        for page in touched {
            let from = offset.max(page * PAGE) - page * PAGE;
            let to = (offset + len).min((page + 1) * PAGE) - page * PAGE;
            if to - from == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Sets the length: cuts the image, or extends it with zeros.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }

    /// Returns the numbers of the pages that exist in a range of bytes.
    pub fn pages_in(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        self.pages.range(range.start / PAGE..range.end.div_ceil(PAGE)).map(|(page, _)| *page)
    }

    /// Takes one page, and nothing else, from `other`.
    pub fn copy_page(&mut self, other: &Image, page: u64) {
        match other.pages.get(&page) {
            Some(bytes) => drop(self.pages.insert(page, bytes.clone())),
            None => drop(self.pages.remove(&page)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn agrees_with_a_plain_vector_and_shares_nothing_it_should_not() {
        let rng = SplitMix::new(1);
        let below = |n: u64| rng.next() % n;
        let mut image = Image::default();
        let mut model: Vec<u8> = Vec::new();
        let mut old = (image.clone(), model.clone());
        for step in 0..2000 {
            let (at, len) = (below(4 * PAGE), below(2 * PAGE));
            match below(4) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|_| below(256) as u8).collect();
                    image.write(&data, at);
                    if len > 0 {
                        model.resize(model.len().max((at + len) as usize), 0);
                        model[at as usize..(at + len) as usize].copy_from_slice(&data);
                    }
                }
                2 => {
                    image.set_len(at);
                    model.resize(at as usize, 0);
                }
                _ => {
                    image.zero(at, len);
                    let end = model.len().min((at + len) as usize);
                    if (at as usize) < end {
                        model[at as usize..end].fill(0);
                    }
                }
            }
            for (image, model) in [(&image, &model), (&old.0, &old.1)] {
                let mut back = vec![1; model.len() + 100];
                image.read(&mut back, 0);
                assert_eq!(image.len(), model.len() as u64);
                assert_eq!(back[..model.len()], model[..], "step {step}");
                assert!(back[model.len()..].iter().all(|b| *b == 0));
            }
            if below(100) < 5 {
                old = (image.clone(), model.clone());
            }
        }
    }
}
