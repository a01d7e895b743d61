//! Metadata contexts: the options that select them, and the extents that they report. Every export
//! has the contexts `base:allocation` and `hindcast:damaged`. It also has
//! `hindcast:changed-since:PAST` for each snapshot, and each other past state, that the server can
//! compare it with.

use super::option_data::{OptionError, Reader, rep};
use crate::Changes;
use hindcast_engine::Result;
use hindcast_engine::device::{BlockDevice, StatusRun};
use std::sync::Arc;

/// Metadata context that reports which ranges are allocated, and which read as zeros.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Id of [`BASE_ALLOCATION`] in replies. The protocol allows any number.
pub const ALLOCATION_ID: u32 = 1;

/// Namespace of the metadata contexts that the NBD protocol does not define.
pub const NAMESPACE: &str = "hindcast:";
/// Metadata context that reports which ranges are known to be damaged. A read of them fails.
pub const DAMAGED: &str = "hindcast:damaged";
/// Id of [`DAMAGED`] in replies.
pub const DAMAGED_ID: u32 = 2;
/// Extent flag of [`DAMAGED`]: the range is damaged.
pub const STATE_DAMAGED: u32 = 1;
/// Prefix of the metadata contexts that report which ranges may differ from a past state. The name
/// of the past state follows it.
pub const CHANGED_SINCE: &str = "hindcast:changed-since:";
/// Extent flag of [`CHANGED_SINCE`]: the content may differ. Without this flag the content is the
/// same.
pub const STATE_CHANGED: u32 = 1;
/// Maximum number of past states that one connection compares with.
pub const MAX_COMPARED: usize = 16;

/// A selected metadata context.
#[derive(Clone)]
pub enum Context {
    /// [`BASE_ALLOCATION`].
    Allocation,
    /// [`DAMAGED`].
    Damaged,
    /// [`CHANGED_SINCE`] with a past state. The number is the id of the context in replies.
    Changes(u32, Arc<dyn Changes>),
}

impl Context {
    /// Returns the id of the context in replies.
    pub fn id(&self) -> u32 {
        match self {
            Context::Allocation => ALLOCATION_ID,
            Context::Damaged => DAMAGED_ID,
            Context::Changes(id, _) => *id,
        }
    }

    /// Describes a range of `device` as `(length in bytes, flags)`. Returns at least one extent and
    /// at most `max`. The extents may end before the range does. Neighbouring extents have
    /// different flags.
    pub fn extents(
        &self,
        device: &dyn BlockDevice,
        offset: u64,
        length: u32,
        max: usize,
    ) -> Result<Vec<(u32, u32)>> {
        let mut extents = match self {
            Context::Allocation => extents(&device.block_status(offset, u64::from(length), max)?, length),
            Context::Damaged => {
                let flag = |damaged| if damaged { STATE_DAMAGED } else { 0 };
                let runs = device.damaged(offset, u64::from(length), max)?;
                merged(runs.into_iter().map(|(length, damaged)| (length, flag(damaged))), length)
            }
            Context::Changes(_, changes) => {
                let flag = |changed| if changed { STATE_CHANGED } else { 0 };
                let runs = changes.runs(offset, u64::from(length), max)?;
                merged(runs.into_iter().map(|(length, changed)| (length, flag(changed))), length)
            }
        };
        extents.truncate(max);
        if extents.is_empty() {
            // These flags are always right: allocated with unknown content, no known damage, or
            // possibly changed.
            let unknown = if matches!(self, Context::Changes(..)) { STATE_CHANGED } else { 0 };
            extents.push((length, unknown));
        }
        Ok(extents)
    }
}

/// Extent flag of [`BASE_ALLOCATION`]: the range is not allocated.
pub const STATE_HOLE: u32 = 1;
/// Extent flag of [`BASE_ALLOCATION`]: the range reads as zeros.
pub const STATE_ZERO: u32 = 2;

/// Maximum number of queries in one option. No client has a reason to send more.
const MAX_QUERIES: u32 = 1024;

/// The data of LIST_META_CONTEXT or SET_META_CONTEXT.
#[derive(Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The name of the export.
    pub export: &'a str,
    /// The queries: names of contexts, or of namespaces.
    pub queries: Vec<&'a str>,
}

impl<'a> MetaRequest<'a> {
    /// Decodes the data of the option.
    pub fn decode(data: &'a [u8]) -> std::result::Result<MetaRequest<'a>, OptionError> {
        let mut reader = Reader::new(data);
        let export = reader.string()?;
        let count = reader.u32()?;
        if count > MAX_QUERIES {
            return Err(OptionError::new(rep::ERR_TOO_BIG, "too many queries"));
        }
        let queries = (0..count).map(|_| reader.string()).collect::<std::result::Result<_, _>>()?;
        reader.end()?;
        Ok(MetaRequest { export, queries })
    }

    /// Returns whether LIST_META_CONTEXT lists `base:allocation`: there is no query, or one query
    /// is the namespace or the full name.
    pub fn lists_allocation(&self) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|q| *q == "base:" || *q == BASE_ALLOCATION)
    }

    /// Returns whether SET_META_CONTEXT selects `base:allocation`: one query is the full name.
    pub fn selects_allocation(&self) -> bool {
        self.queries.contains(&BASE_ALLOCATION)
    }

    /// Returns whether LIST_META_CONTEXT lists [`DAMAGED`]: there is no query, or one query is the
    /// namespace or the full name.
    pub fn lists_damage(&self) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|q| *q == NAMESPACE || *q == DAMAGED)
    }

    /// Returns whether SET_META_CONTEXT selects [`DAMAGED`]: one query is the full name.
    pub fn selects_damage(&self) -> bool {
        self.queries.contains(&DAMAGED)
    }

    /// Returns the names of the past states in the queries, without duplicates.
    pub fn compared(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.queries.iter().filter_map(|q| q.strip_prefix(CHANGED_SINCE)) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns whether LIST_META_CONTEXT lists all snapshots: there is no query, or one query is
    /// the namespace or [`CHANGED_SINCE`].
    pub fn lists_snapshots(&self) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|q| *q == NAMESPACE || *q == CHANGED_SINCE)
    }
}

/// Converts the runs of a device to `(length in bytes, flags)` extents. Merges neighbouring runs
/// with equal flags. The extents are at most `limit` bytes together, so each length fits 32 bits.
/// Returns no extents if there are no runs.
pub fn extents(runs: &[StatusRun], limit: u32) -> Vec<(u32, u32)> {
    let flags = |run: &StatusRun| {
        let hole = if run.allocated { 0 } else { STATE_HOLE };
        hole | if run.zero { STATE_ZERO } else { 0 }
    };
    merged(runs.iter().map(|run| (run.length, flags(run))), limit)
}

fn merged(runs: impl Iterator<Item = (u64, u32)>, limit: u32) -> Vec<(u32, u32)> {
    let mut left = limit;
    let mut extents: Vec<(u32, u32)> = Vec::new();
    for (length, kind) in runs {
        let length = u32::try_from(length).map_or(left, |l| l.min(left));
        if length == 0 {
            continue;
        }
        left -= length;
        match extents.last_mut() {
            Some((last, flags)) if *flags == kind => *last += length,
            _ => extents.push((length, kind)),
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
    fn snapshots_are_named_or_listed() {
        let cases: [(&[&str], bool, &[&str]); 6] = [
            (&[], true, &[]),
            (&["hindcast:"], true, &[]),
            (&["hindcast:changed-since:"], true, &[]),
            (&["hindcast:changed-since:a", "base:allocation", "hindcast:changed-since:a"], false, &["a"]),
            (&["hindcast:changed-since:b", "hindcast:changed-since:db@a"], false, &["b", "db@a"]),
            (&["hindcast:else", "base:"], false, &[]),
        ];
        for (queries, lists, compared) in cases {
            let data = encode("vol", queries);
            let request = MetaRequest::decode(&data).unwrap();
            assert_eq!((request.lists_snapshots(), request.compared().as_slice()), (lists, compared));
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
