//! The payload of a CDP record: how it encodes its sectors, how it is compressed, and how a chunk's
//! checksum follows from it.

use crate::codec::crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{Compression, Encoding};
use std::cell::RefCell;
use std::sync::LazyLock;

impl Encoding {
    pub(crate) fn decode(code: u8) -> Option<Self> {
        [Encoding::Parity, Encoding::Undo, Encoding::Redo].into_iter().find(|e| *e as u8 == code)
    }

    /// Returns whether a record leads from the content before it to the content after it.
    pub(crate) fn leads_forward(self) -> bool {
        self != Encoding::Undo
    }

    /// Returns whether a record leads from the content after it to the content before it.
    pub(crate) fn leads_backward(self) -> bool {
        self != Encoding::Redo
    }

    /// Appends the payload of a record that replaced `old` by `new`, uncompressed.
    pub(crate) fn put_payload(self, old: &[u8], new: &[u8], out: &mut Vec<u8>) {
        match self {
            Encoding::Parity => out.extend(old.iter().zip(new).map(|(old, new)| old ^ new)),
            Encoding::Undo => out.extend_from_slice(old),
            Encoding::Redo => out.extend_from_slice(new),
        }
    }

    /// Applies a record to `content`, in a direction in which the record leads.
    pub(crate) fn apply(self, content: &mut [u8], payload: &[u8]) {
        match self {
            Encoding::Parity => xor(content, payload),
            Encoding::Undo | Encoding::Redo => content.copy_from_slice(payload),
        }
    }
}

impl Compression {
    pub(crate) fn decode(code: u8) -> Option<Self> {
        let all = [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd];
        all.into_iter().find(|c| *c as u8 == code)
    }
}

/// Sets `into` to `into` XOR `other`, which has equal length.
fn xor(into: &mut [u8], other: &[u8]) {
    debug_assert_eq!(into.len(), other.len());
    into.iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
}

/// Zstandard's level for writing, the fastest of its usual ones.
const QUICK: i32 = 1;
/// Zstandard's level for compressing in the background.
const HARD: i32 = 3;

thread_local! {
    /// The decompressor of the thread. It is kept because making one takes longer than
    /// decompressing a record.
    static UNPACKER: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// A compressor of payloads, one after another.
pub(crate) struct Packer {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(compression: Compression) -> Result<Packer> {
        Self::at_level(compression, QUICK)
    }

    /// Makes a packer that compresses better and takes longer.
    pub(crate) fn hard() -> Result<Packer> {
        Self::at_level(Compression::Zstd, HARD)
    }

    fn at_level(compression: Compression, level: i32) -> Result<Packer> {
        let failed = |e| Error::io("set up Zstandard", e);
        let zstd = (compression == Compression::Zstd).then(|| zstd::bulk::Compressor::new(level));
        Ok(Packer { compression, zstd: zstd.transpose().map_err(failed)?, packed: Vec::new() })
    }

    /// Compresses what `out` holds from byte `from` on, if that makes it smaller, and returns the
    /// compression used.
    pub(crate) fn pack(&mut self, out: &mut Vec<u8>, from: usize) -> Compression {
        let (raw, packed) = (&out[from..], &mut self.packed);
        packed.clear();
        match self.compression {
            Compression::None => {}
            Compression::ZeroRun if !has_zeros(raw) => {}
            Compression::ZeroRun => pack_zero_runs(raw, packed),
            Compression::Lz4 => {
                packed.resize(lz4_flex::block::get_maximum_output_size(raw.len()), 0);
                let len = lz4_flex::block::compress_into(raw, packed).unwrap_or(0);
                packed.truncate(len);
            }
            Compression::Zstd => {
                packed.resize(zstd::zstd_safe::compress_bound(raw.len()), 0);
                let done = self.zstd.as_mut().map(|z| z.compress_to_buffer(raw, packed.as_mut_slice()));
                packed.truncate(done.and_then(|done| done.ok()).unwrap_or(0));
            }
        }
        if packed.is_empty() || packed.len() >= raw.len() {
            return Compression::None;
        }
        out.truncate(from);
        out.extend_from_slice(packed);
        self.compression
    }
}

/// Returns the `len` bytes that were packed, or `None` when `packed` is not a result of
/// [`Packer::pack`].
pub(crate) fn unpack(compression: Compression, packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut raw = vec![0; len];
    let done = match compression {
        Compression::None => {
            if packed.len() == len {
                raw.copy_from_slice(packed);
            }
            packed.len()
        }
        Compression::ZeroRun => return unpack_zero_runs(packed, raw),
        Compression::Lz4 => lz4_flex::block::decompress_into(packed, &mut raw).ok()?,
        Compression::Zstd => UNPACKER.with_borrow_mut(|unpacker| {
            let unpacker = match unpacker {
                Some(unpacker) => unpacker,
                none => none.insert(zstd::bulk::Decompressor::new().ok()?),
            };
            unpacker.decompress_to_buffer(packed, &mut raw).ok()
        })?,
    };
    (done == len).then_some(raw)
}

/// The unit of zero runs, in bytes.
const WORD: usize = 8;
/// The number of zero words that end a run of other words. A shorter run of zeros costs more than
/// it saves.
const SHORT_RUN: usize = 2;
/// The number of bytes that are examined together.
const LOOK: usize = 32 * WORD;

/// Returns whether there is anything that [`pack_zero_runs`] would leave out. This check is faster
/// than the attempt.
fn has_zeros(raw: &[u8]) -> bool {
    let is_zero = |word: &[u8]| *word == [0; WORD];
    if raw.first_chunk::<WORD>().is_some_and(|word| is_zero(word))
        || raw.last_chunk::<WORD>().is_some_and(|word| is_zero(word))
    {
        return true;
    }
    let mut run = 0;
    raw.chunks(LOOK).any(|part| {
        // Mostly there is none at all, which is found out for many at once.
        if !part.chunks_exact(WORD).fold(false, |any, word| any | is_zero(word)) {
            run = 0;
            return false;
        }
        part.chunks_exact(WORD).any(|word| {
            run = if is_zero(word) { run + 1 } else { 0 };
            run == SHORT_RUN
        })
    })
}

/// Packs `raw` as a sequence of pairs and words: each pair is (number of zero words, number of
/// other words), and the other words follow it. Each number has seven bits a byte, low ones first.
/// The last zeros are left out.
fn pack_zero_runs(raw: &[u8], out: &mut Vec<u8>) {
    debug_assert_eq!(raw.len() % WORD, 0);
    let words = raw.len() / WORD;
    let is_zero = |at: usize| raw[at * WORD..(at + 1) * WORD] == [0; WORD];
    let mut at = 0;
    while at < words {
        let zeros = (at..words).take_while(|w| is_zero(*w)).count();
        let start = at + zeros;
        let mut end = start;
        let mut run = 0;
        for word in start..words {
            run = if is_zero(word) { run + 1 } else { 0 };
            if run == SHORT_RUN {
                break;
            }
            if run == 0 {
                end = word + 1;
            }
        }
        if end == start {
            break;
        }
        put_number(zeros, out);
        put_number(end - start, out);
        out.extend_from_slice(&raw[start * WORD..end * WORD]);
        at = end;
    }
    if at == 0 {
        // All words are zeros. An empty output would look like content that could not be
        // compressed.
        put_number(words, out);
        put_number(0, out);
    }
}

fn unpack_zero_runs(packed: &[u8], mut raw: Vec<u8>) -> Option<Vec<u8>> {
    let (mut packed, mut at) = (packed, 0usize);
    while !packed.is_empty() {
        let zeros = take_number(&mut packed)?.checked_mul(WORD)?;
        let others = take_number(&mut packed)?.checked_mul(WORD)?;
        at = at.checked_add(zeros)?;
        let (head, tail) = packed.split_at_checked(others)?;
        let end = at.checked_add(others)?;
        if end > raw.len() {
            return None;
        }
        raw.get_mut(at..end)?.copy_from_slice(head);
        (packed, at) = (tail, end);
    }
    Some(raw)
}

fn put_number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 128 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0u64;
    for shift in (0..35).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 127) << shift;
        if first & 128 == 0 {
            return usize::try_from(number).ok();
        }
    }
    None
}

/// Returns the CRC32C of a chunk after a part of it was replaced. The part lies `behind` bytes
/// before the chunk's end. `before` is the chunk's sum before, and `old` and `new` are the part's
/// sums.
///
/// CRC32C is affine: sums of equally long messages differ by a linear function of the messages'
/// XOR. Zeros in front of the part do not change that difference, and the bytes behind the part
/// shift it.
pub(crate) fn crc_after(before: u32, old: u32, new: u32, behind: u64) -> u32 {
    before ^ shifted(old ^ new, behind)
}

/// The effect of 2ⁿ zeros behind each byte of a difference: [n][place of the byte][byte].
static SHIFTS: LazyLock<Vec<[[u32; 256]; 4]>> = LazyLock::new(|| (0..SHIFTS_LEN).map(shift_table).collect());
/// The number of entries of `SHIFTS`. It suffices because chunks are shorter than 2³² bytes.
const SHIFTS_LEN: u32 = 32;

fn shift_table(log2: u32) -> [[u32; 256]; 4] {
    let shift = |difference: u32| {
        crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, difference.into(), 0, 1 << log2) as u32
    };
    let bits: Vec<u32> = (0..32).map(|bit| shift(1 << bit)).collect();
    let mut table = [[0; 256]; 4];
    for (place, of_place) in table.iter_mut().enumerate() {
        for (byte, entry) in of_place.iter_mut().enumerate() {
            let set = (0..8).filter(|bit| byte >> bit & 1 == 1);
            *entry = set.fold(0, |sum, bit| sum ^ bits[8 * place + bit]);
        }
    }
    table
}

/// Returns the contribution of a difference with `behind` zeros after it.
fn shifted(difference: u32, behind: u64) -> u32 {
    let tables = SHIFTS.iter().enumerate().filter(|(log2, _)| behind >> log2 & 1 == 1);
    let done = tables.fold(difference, |d, (_, table)| {
        d.to_le_bytes().iter().zip(table).fold(0, |sum, (byte, of_place)| sum ^ of_place[*byte as usize])
    });
    match behind >> SHIFTS_LEN {
        0 => done,
        _ => {
            let rest = behind >> SHIFTS_LEN << SHIFTS_LEN;
            crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, done.into(), 0, rest) as u32
        }
    }
}

/// Returns the CRC32C of `len` zeros.
pub(crate) fn crc_of_zeros(len: u64) -> u32 {
    static BLOCK: [u8; 512] = [0; 512];
    // A sum of zeros is a difference of nothing, shifted from the sum of one block.
    let block = crc32c(&BLOCK);
    let mut crc = 0;
    let mut done = 0;
    let mut part = (block, 512u64);
    let mut left = len / 512;
    while left > 0 {
        if left & 1 == 1 {
            crc = shifted(crc, part.1) ^ part.0;
            done += part.1;
        }
        part = (shifted(part.0, part.1) ^ part.0, part.1 * 2);
        left >>= 1;
    }
    let rest = &BLOCK[..(len - done) as usize];
    shifted(crc, rest.len() as u64) ^ crc32c(rest)
}

/// Returns the error for history that can't be reconstructed.
pub(crate) fn lost(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Lost, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    const ALL: [Compression; 4] =
        [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd];

    fn sample(rng: &SplitMix, len: usize) -> Vec<u8> {
        let mut raw = vec![0; len];
        for _ in 0..rng.next() % 20 {
            let start = rng.next() as usize % len;
            let end = (start + 1 + rng.next() as usize % 300).min(len);
            raw[start..end].iter_mut().for_each(|b| *b = rng.next() as u8);
        }
        if rng.next() % 5 == 0 {
            raw.iter_mut().for_each(|b| *b = rng.next() as u8);
        }
        raw
    }

    #[test]
    fn packs_and_unpacks() {
        let rng = SplitMix::new(1);
        for compression in ALL {
            let mut packer = Packer::new(compression).unwrap();
            for round in 0..200 {
                let raw = sample(&rng, 512 * (1 + rng.next() as usize % 32));
                let mut out = [&[1, 2, 3][..], &raw].concat();
                let how = packer.pack(&mut out, 3);
                let (before, packed) = out.split_at(3);
                assert_eq!(before, [1, 2, 3]);
                assert!(packed.len() <= raw.len(), "{compression:?} never grows");
                assert_eq!(unpack(how, packed, raw.len()).as_ref(), Some(&raw), "{compression:?} {round}");
                assert!(unpack(how, packed, raw.len() - 8).is_none_or(|r| r != raw));
            }
            let mut packed = vec![0; 4096];
            let how = packer.pack(&mut packed, 0);
            assert_eq!(unpack(how, &packed, 4096), Some(vec![0; 4096]));
            assert!(
                compression == Compression::None || packed.len() < 40,
                "{compression:?}: {}",
                packed.len()
            );
        }
    }

    #[test]
    fn damaged_payloads_are_refused_or_other_bytes() {
        let rng = SplitMix::new(2);
        for compression in ALL {
            let mut packer = Packer::new(compression).unwrap();
            for _ in 0..500 {
                let raw = sample(&rng, 4096);
                let mut out = raw;
                let how = packer.pack(&mut out, 0);
                let at = rng.next() as usize % out.len();
                out[at] ^= 1 << (rng.next() % 8);
                let got = unpack(how, &out, 4096);
                assert!(got.is_none_or(|got| got.len() == 4096));
                out.truncate(at);
                let _ = unpack(how, &out, 4096);
            }
        }
    }

    #[test]
    fn runs_of_zeros_are_seen_wherever_they_are() {
        let words = 3 * LOOK / WORD;
        for at in 0..words {
            let mut raw = vec![7; words * WORD];
            raw[at * WORD..(at + 1) * WORD].fill(0);
            assert_eq!(has_zeros(&raw), at == 0 || at == words - 1, "one word at {at}");
            let end = ((at + SHORT_RUN) * WORD).min(raw.len());
            raw[at * WORD..end].fill(0);
            assert!(has_zeros(&raw), "two words at {at}");
        }
    }

    #[test]
    fn zero_runs_have_one_form() {
        let mut raw = vec![0u8; 128];
        raw[40] = 7;
        raw[56] = 8;
        raw[120] = 9;
        let mut out = Vec::new();
        pack_zero_runs(&raw, &mut out);
        // Five words of zeros, three others (one of zeros among them), seven of zeros, one other.
        let golden = [
            &[5u8, 3][..],
            &[7, 0, 0, 0, 0, 0, 0, 0],
            &[0; 8],
            &[8, 0, 0, 0, 0, 0, 0, 0],
            &[7, 1],
            &[9, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(out, golden.concat());
        assert_eq!(unpack_zero_runs(&[200], vec![0; 128]), None, "half a number");
        assert_eq!(unpack_zero_runs(&[1, 1, 0], vec![0; 128]), None, "half a word");
        assert_eq!(unpack_zero_runs(&[16, 1, 0, 0, 0, 0, 0, 0, 0, 0], vec![0; 128]), None, "past the end");
        assert_eq!(unpack_zero_runs(&[255, 255, 255, 255, 255, 255, 0, 0], vec![0; 128]), None, "too large");
    }

    #[test]
    fn sums_follow_from_parts() {
        let rng = SplitMix::new(3);
        for len in [512usize, 4096, 16384, 1 << 20] {
            let mut chunk = sample(&rng, len);
            let mut sum = crc32c(&chunk);
            for _ in 0..20 {
                let start = rng.next() as usize % (len / 512) * 512;
                let end = start + 512 * (1 + rng.next() as usize % ((len - start) / 512));
                let new = sample(&rng, end - start);
                let old = crc32c(&chunk[start..end]);
                sum = crc_after(sum, old, crc32c(&new), (len - end) as u64);
                chunk[start..end].copy_from_slice(&new);
                assert_eq!(sum, crc32c(&chunk));
            }
            assert_eq!(crc_of_zeros(len as u64), crc32c(&vec![0; len]));
        }
        assert_eq!(crc_of_zeros(0), 0);
        assert_eq!(crc_of_zeros(1000), crc32c(&[0; 1000]));
    }

    #[test]
    fn encodings_lead_where_they_say() {
        let rng = SplitMix::new(4);
        let (old, new) = (sample(&rng, 1024), sample(&rng, 1024));
        for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
            let mut payload = Vec::new();
            encoding.put_payload(&old, &new, &mut payload);
            let (mut forward, mut backward) = (old.clone(), new.clone());
            encoding.apply(&mut forward, &payload);
            encoding.apply(&mut backward, &payload);
            assert_eq!(forward == new, encoding.leads_forward());
            assert_eq!(backward == old, encoding.leads_backward());
            assert_eq!(Encoding::decode(encoding as u8), Some(encoding));
        }
        assert_eq!((Encoding::decode(0), Compression::decode(4)), (None, None));
    }
}
