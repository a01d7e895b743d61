//! Finds runs of zeros in data. Zeros that are left out take no space.

use crate::units::BLOCK;
use std::ops::Range;

/// A block of zeros, for comparisons.
static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Number of bytes of zeros that are left out where chunks are longer.
const LONG: u64 = 64 << 10;

/// Returns the shortest run of zeros that is left out, in bytes: a chunk may consist of that.
/// Leaving out shorter runs would save no space, and only make more records and more requests.
pub(super) fn least(chunk_size: u64) -> u64 {
    chunk_size.clamp(BLOCK, LONG)
}

fn is_zero(data: &[u8]) -> bool {
    data.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

/// Cuts data that begins at byte `offset` of a volume into runs, end to end: (range of `data`,
/// whether it is zeros). A run of zeros has whole blocks of the volume, and at least `least` bytes,
/// unless it is all of the data.
pub(super) fn runs(data: &[u8], offset: u64, least: u64) -> Vec<(Range<usize>, bool)> {
    let mut found: Vec<(Range<usize>, bool)> = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let end = (at + (BLOCK - (offset + at as u64) % BLOCK) as usize).min(data.len());
        let zero = is_zero(&data[at..end]);
        match found.last_mut() {
            Some((last, kind)) if *kind == zero => last.end = end,
            _ => found.push((at..end, zero)),
        }
        at = end;
    }
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for (part, zero) in found {
        let zero = zero && (part.len() as u64 >= least || part.len() == data.len());
        match runs.last_mut() {
            Some((last, kind)) if *kind == zero => last.end = part.end,
            _ => runs.push((part, zero)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn short_runs_of_zeros_are_data() {
        let mut data = vec![0u8; 64 << 10];
        assert_eq!(runs(&data, 0, 1 << 20), [(0..65536, true)], "all of it");
        data[20_000] = 1;
        assert_eq!(runs(&data, 0, 4096), [(0..16384, true), (16384..20480, false), (20480..65536, true)]);
        assert_eq!(runs(&data, 0, 20_000), [(0..20480, false), (20480..65536, true)]);
        // The runs follow the volume's blocks, not those of the data.
        assert_eq!(runs(&data, 512, 4096), [(0..19968, true), (19968..24064, false), (24064..65536, true)]);
        assert_eq!(runs(&data[..100], 512, 4096), [(0..100, true)]);
        assert_eq!(runs(&[], 0, 4096), []);
    }

    #[test]
    fn runs_are_end_to_end_and_zeros_are_zeros() {
        let rng = SplitMix::new(1);
        for _ in 0..200 {
            let mut data = vec![0u8; (rng.next() % 100_000) as usize];
            for _ in 0..rng.next() % 6 {
                if let Some(byte) = data.get_mut((rng.next() % 100_000) as usize) {
                    *byte = 1;
                }
            }
            let (offset, least) = (rng.next() % 64 * 512, 4096 << (rng.next() % 4));
            let found = runs(&data, offset, least);
            let mut at = 0;
            for (n, (part, zero)) in found.iter().enumerate() {
                assert!(part.start == at && part.end > at, "{found:?}");
                assert!(n == 0 || found[n - 1].1 != *zero, "{found:?}");
                at = part.end;
                let long = part.len() as u64 >= least || part.len() == data.len();
                assert!(!zero || long && data[part.clone()].iter().all(|b| *b == 0), "{found:?}");
            }
            assert_eq!(at, data.len());
        }
    }
}
