//! A small benchmark of this machine: decoding a record of the CDP log and applying it.

use crate::failure::Failure;
use hindcast_engine::cdp::{CdpSample, Compression, Encoding};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Duration of each of the two measurements.
const TIME: Duration = Duration::from_millis(200);
/// Number of records that are used in turn, so that no single one stays in the nearest cache.
const RECORDS: usize = 64;

/// Measured size and times of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) record_size: f64,
    pub(crate) decode_seconds: f64,
    pub(crate) xor_seconds: f64,
}

/// Measures records of writes that change a share of a block. The changes are runs of 32 bytes,
/// spread over the block, as a database makes them.
pub(super) fn run(
    block: usize,
    changed: f64,
    encoding: Encoding,
    compression: Compression,
) -> Result<Measured, Failure> {
    let samples = (0..RECORDS)
        .map(|n| {
            let old = noise(block, n as u64);
            let mut new = old.clone();
            change(&mut new, changed, n as u64);
            CdpSample::of(encoding, compression, &old, &new)
        })
        .collect::<Result<Vec<_>, _>>();
    let samples = samples.map_err(|e| Failure::usage(e.to_string()))?;
    let payloads: Vec<Vec<u8>> = samples.iter().filter_map(CdpSample::decode).collect();
    let mut content = noise(block, u64::MAX);
    let stored: usize = samples.iter().map(CdpSample::stored).sum();
    Ok(Measured {
        record_size: stored as f64 / RECORDS as f64,
        decode_seconds: seconds_of(|n| drop(black_box(samples[n % RECORDS].decode()))),
        xor_seconds: seconds_of(|n| {
            if let Some(payload) = payloads.get(n % RECORDS) {
                samples[n % RECORDS].apply(black_box(&mut content), payload);
            }
        }),
    })
}

/// Returns the seconds that one call takes. It is the best of several rounds, because other
/// programs use the machine too.
fn seconds_of(mut call: impl FnMut(usize)) -> f64 {
    let end = Instant::now() + TIME;
    let mut best = f64::INFINITY;
    while Instant::now() < end {
        let start = Instant::now();
        (0..RECORDS).for_each(&mut call);
        best = best.min(start.elapsed().as_secs_f64() / RECORDS as f64);
    }
    best
}

/// Returns bytes that no compressor makes smaller (xorshift).
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Changes a share of a block, in runs that are spread evenly.
fn change(block: &mut [u8], share: f64, seed: u64) {
    const RUN: usize = 32;
    let runs =
        ((block.len() as f64 * share / RUN as f64).round() as usize).clamp(1, block.len().div_ceil(RUN));
    let stride = block.len() / runs;
    let fresh = noise(runs * RUN, seed ^ 0x5555);
    for (n, run) in fresh.chunks(RUN).enumerate() {
        let start = n * stride;
        let end = (start + RUN).min(block.len());
        block[start..end].copy_from_slice(&run[..end - start]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_change_makes_small_records_and_takes_some_time() {
        let of = |changed, encoding| run(16384, changed, encoding, Compression::ZeroRun).unwrap();
        let few = of(0.05, Encoding::Parity);
        let ratio = 16384.0 / few.record_size;
        assert!((10.0..20.0).contains(&ratio), "{few:?}");
        assert!(few.decode_seconds > 0.0 && few.xor_seconds > 0.0, "{few:?}");
        let all = of(1.0, Encoding::Parity);
        assert!(all.record_size >= 16384.0, "{all:?}");
        // What was there before is noise, however little is changed.
        assert!(of(0.05, Encoding::Undo).record_size >= 16384.0);
    }

    #[test]
    fn changes_stay_inside_the_block() {
        for len in [512, 4096, 16384] {
            for share in [0.0001, 0.03, 0.5, 1.0] {
                let old = noise(len, 1);
                let mut new = old.clone();
                change(&mut new, share, 7);
                let changed = old.iter().zip(&new).filter(|(a, b)| a != b).count() as f64 / len as f64;
                assert!(
                    changed > 0.0 && changed <= share.max(32.0 / len as f64) + 0.02,
                    "{len} {share} {changed}"
                );
            }
        }
    }
}
