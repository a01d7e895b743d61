//! Writes as a database makes them. Each write is a whole block, of which only a few per cent
//! differ from the old content.

use crate::nbd::Client;
use crate::process;
use crate::samples::Outcome;
use anyhow::{Context, Result};
use hindcast_engine::world::split_mix;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::Instant;

/// Share of a block that one write changes.
pub(crate) const CHANGED: f64 = 0.03;
/// Least number of writes to other blocks between two writes of the same block. Requests in flight
/// have no order among them.
const APART: usize = 256;
/// Number of requests in flight.
const DEPTH: usize = 32;
/// Length of the head of a block, in bytes. The head (a checksum, a log position) changes with
/// every write.
const HEAD: usize = 8;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Pseudo-random numbers (SplitMix64). The same seed gives the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    /// Fills `out` with text that an entropy coder compresses to half and that does not repeat.
    fn digits(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(16) {
            let bits = self.next();
            for (n, byte) in part.iter_mut().enumerate() {
                *byte = DIGITS[(bits >> (4 * n)) as usize & 15];
            }
        }
    }
}

/// The content of a volume. It is kept in memory so that a write can change a part of a block.
#[derive(Clone)]
pub(crate) struct Database {
    image: Vec<u8>,
    block: usize,
}

impl Database {
    /// Creates a content of `size` bytes, in whole blocks of `block` bytes. A block holds rows of
    /// digits. The last eighth of each block is free and zero.
    pub(crate) fn new(size: u64, block: usize) -> Database {
        let mut image = vec![0; size as usize / block * block];
        let mut random = Random(1);
        for block in image.chunks_mut(block) {
            let rows = block.len() / 8 * 7;
            random.digits(&mut block[..rows]);
        }
        Database { image, block }
    }

    /// Writes all of the content to a volume, and flushes.
    pub(crate) fn load(&self, client: &mut Client) -> Result<()> {
        let mut parts = self.image.chunks(1 << 20).enumerate();
        client
            .write(8, &mut Vec::new(), |out| {
                Ok(parts.next().map(|(n, part)| {
                    out.extend_from_slice(part);
                    (n as u64) << 20
                }))
            })
            .context("write the database")?;
        client.flush()
    }

    /// Updates `count` random blocks, and flushes. The measured time includes the flush.
    pub(crate) fn update(&mut self, client: &mut Client, count: u64, seed: u64) -> Result<Outcome> {
        let mut random = Random(seed);
        let mut recent = vec![usize::MAX; APART.min(self.image.len() / self.block / 2)];
        let mut latencies = Vec::with_capacity(count as usize);
        let cpu = process::cpu_time(std::process::id())?;
        let start = Instant::now();
        let mut done = 0;
        client.write(DEPTH, &mut latencies, |out| {
            if done == count {
                return Ok(None);
            }
            let at = loop {
                let block = random.below((self.image.len() / self.block) as u64) as usize;
                if !recent.contains(&block) {
                    break block;
                }
            };
            let oldest = done as usize % recent.len().max(1);
            if let Some(slot) = recent.get_mut(oldest) {
                *slot = at;
            }
            done += 1;
            let block = &mut self.image[at * self.block..][..self.block];
            change(block, &mut random);
            out.extend_from_slice(block);
            Ok(Some((at * self.block) as u64))
        })?;
        client.flush()?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = process::cpu_time(std::process::id())?.saturating_sub(cpu).as_secs_f64();
        latencies.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let index = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
            latencies.get(index).map(|us| f64::from(*us))
        };
        Ok(Outcome {
            requests: count,
            iops: count as f64 / seconds,
            megabytes: (count * self.block as u64) as f64 / seconds / 1e6,
            p99_us: at(0.99),
            max_us: at(1.0),
            client_cpu: cpu / seconds * 100.0,
        })
    }

    /// Returns a checksum of all content.
    pub(crate) fn sum(&self) -> u64 {
        sum(self.image.chunks(1 << 20))
    }
}

/// Returns the checksum of an export's content. It is comparable with [`Database::sum`].
pub(crate) fn sum_of(client: &mut Client) -> Result<u64> {
    let mut parts = Vec::new();
    let mut hash = DefaultHasher::new();
    for offset in (0..client.size()).step_by(1 << 20) {
        let length = (client.size() - offset).min(1 << 20);
        parts.clear();
        parts.extend(client.read(offset, length as u32)?);
        hash.write(&parts);
    }
    Ok(hash.finish())
}

fn sum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut hash = DefaultHasher::new();
    for part in parts {
        hash.write(part);
    }
    hash.finish()
}

/// Changes the head of a block and a few runs of its rows. The share of changed bytes is
/// [`CHANGED`].
fn change(block: &mut [u8], random: &mut Random) {
    random.digits(&mut block[..HEAD]);
    let bytes = ((block.len() as f64 * CHANGED) as usize).saturating_sub(HEAD).max(1);
    let runs = (bytes / 64).clamp(1, 8);
    let rows = block.len() / 8 * 7;
    for _ in 0..runs {
        let length = bytes / runs;
        let at = HEAD + random.below((rows - HEAD - length) as u64) as usize;
        random.digits(&mut block[at..at + length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_per_cent_change() {
        for size in [512, 4096, 8192] {
            let before = Database::new(size as u64 * 4, size);
            let mut after = before.clone();
            let mut random = Random(7);
            change(&mut after.image[..size], &mut random);
            let differ = before.image.iter().zip(&after.image).filter(|(a, b)| a != b).count();
            // A random digit may be equal to the old one.
            assert!(differ > size / 60 && differ <= size / 25, "{differ} of {size}");
            assert!(before.sum() != after.sum());
        }
    }
}
