//! Metadata contexts: the options that select them and the extents they report. One exists: `base:allocation`.

use super::options::{OptionError, Reader, rep};
use hindcast_engine::device::StatusRun;

/// The one context there is.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its id on the wire once it is selected; any number will do.
pub const ALLOCATION_ID: u32 = 1;

/// Extent flag: not allocated.
pub const STATE_HOLE: u32 = 1;
/// Extent flag: reads as zeros.
pub const STATE_ZERO: u32 = 2;

/// More queries than any client has reason to send.
const MAX_QUERIES: u32 = 1024;

/// The body of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export asked about.
    pub export: &'a str,
    /// What is looked for.
    pub queries: Vec<&'a str>,
}

impl<'a> MetaRequest<'a> {
    /// Decodes the option's data.
    pub fn decode(data: &'a [u8]) -> Result<MetaRequest<'a>, OptionError> {
        let mut reader = Reader::new(data);
        let export = reader.string()?;
        let count = reader.u32()?;
        if count > MAX_QUERIES {
            return Err(OptionError::new(rep::ERR_TOO_BIG, "too many queries"));
        }
        let queries = (0..count).map(|_| reader.string()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(MetaRequest { export, queries })
    }

    /// Whether LIST_META_CONTEXT shows `base:allocation`: asked for everything, for the namespace, or by name.
    pub fn lists_allocation(&self) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|q| *q == "base:" || *q == BASE_ALLOCATION)
    }

    /// Whether SET_META_CONTEXT selects `base:allocation`: by its full name only.
    pub fn selects_allocation(&self) -> bool {
        self.queries.contains(&BASE_ALLOCATION)
    }
}

/// Turns a device's runs into `(length, flags)` extents: neighbours of one kind merged, `limit` bytes at most in all.
/// Lengths fit the wire because `limit` does. Empty if the device reported nothing.
pub fn extents(runs: &[StatusRun], limit: u32) -> Vec<(u32, u32)> {
    let mut left = limit;
    let mut extents: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
    for run in runs {
        let length = u32::try_from(run.length).map_or(left, |l| l.min(left));
        if length == 0 {
            continue;
        }
        left -= length;
        let hole = if run.allocated { 0 } else { STATE_HOLE };
        let zero = if run.zero { STATE_ZERO } else { 0 };
        match extents.last_mut() {
            Some((last, flags)) if *flags == hole | zero => *last += length,
            _ => extents.push((length, hole | zero)),
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(export: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = Vec::new();
        let string = |data: &mut Vec<u8>, s: &str| {
            data.extend_from_slice(&(s.len() as u32).to_be_bytes());
            data.extend_from_slice(s.as_bytes());
        };
        string(&mut data, export);
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        for query in queries {
            string(&mut data, query);
        }
        data
    }

    #[test]
    fn queries_match_as_documented() {
        let cases: [(&[&str], bool, bool); 7] = [
            (&[], true, false),
            (&["base:"], true, false),
            (&["base:allocation"], true, true),
            (&[""], false, false),
            (&["qemu:dirty-bitmap:x"], false, false),
            (&["base:nothing"], false, false),
            (&["x-other:", "base:allocation"], true, true),
        ];
        for (queries, lists, selects) in cases {
            let data = encode("vol", queries);
            let request = MetaRequest::decode(&data).unwrap();
            assert_eq!(
                (request.lists_allocation(), request.selects_allocation()),
                (lists, selects),
                "{queries:?}"
            );
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let good = encode("vol", &["base:allocation"]);
        for cut in 0..good.len() {
            assert_eq!(
                MetaRequest::decode(&good[..cut]).unwrap_err().reply,
                rep::ERR_INVALID,
                "cut at {cut}"
            );
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(MetaRequest::decode(&long).unwrap_err().reply, rep::ERR_INVALID);
        let mut many = encode("vol", &[]);
        let at = many.len() - 4;
        many[at..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(MetaRequest::decode(&many).unwrap_err().reply, rep::ERR_TOO_BIG);
    }

    #[test]
    fn neighbours_of_one_kind_merge_and_the_limit_cuts() {
        let run = |length, allocated, zero| StatusRun { length, allocated, zero };
        let runs = [run(4096, true, false), run(4096, true, false), run(1 << 40, false, true)];
        assert_eq!(extents(&runs, 16384), [(8192, 0), (8192, STATE_HOLE | STATE_ZERO)]);
        assert_eq!(extents(&runs, 4096), [(4096, 0)]);
        assert_eq!(extents(&[], 4096), []);
    }

    proptest! {
        #[test]
        fn requests_round_trip(export in "[a-z@:]{0,40}", queries in proptest::collection::vec("[a-z:]{0,20}", 0..8)) {
            let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
            let data = encode(&export, &queries);
            let request = MetaRequest::decode(&data).unwrap();
            prop_assert_eq!(request.export, export.as_str());
            prop_assert_eq!(request.queries, queries);
        }

        #[test]
        fn any_bytes_decode_or_fail_cleanly(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = MetaRequest::decode(&data) {
                prop_assert_eq!(encode(request.export, &request.queries), data);
            }
        }

        #[test]
        fn extents_never_exceed_the_limit_nor_repeat_a_kind(
            runs in proptest::collection::vec((1u64..1 << 34, any::<bool>(), any::<bool>()), 0..50),
            limit: u32,
        ) {
            let runs: Vec<_> =
                runs.into_iter().map(|(length, allocated, zero)| StatusRun { length, allocated, zero }).collect();
            let extents = extents(&runs, limit);
            let total: u64 = extents.iter().map(|e| u64::from(e.0)).sum();
            let have: u64 = runs.iter().map(|r| r.length).sum();
            prop_assert_eq!(total, have.min(u64::from(limit)));
            prop_assert!(extents.windows(2).all(|w| w[0].1 != w[1].1));
            prop_assert!(extents.iter().all(|e| e.0 > 0));
        }
    }
}
