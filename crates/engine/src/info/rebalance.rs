//! The progress of a rebalancing.

/// The progress of the pass that moves data to the places that Share gives it: of the pass that is
/// under way, or of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebalanceInfo {
    /// Whether a pass is under way.
    pub running: bool,
    /// The number of the round, from 1. Data whose place was full is tried again in the next round.
    pub round: u32,
    /// The largest number of bytes moved in a second; 0 means no limit.
    pub rate: u64,
    /// Bytes of data that the round has looked at.
    pub seen_bytes: u64,
    /// Bytes in use in the pool.
    pub used_bytes: u64,
    /// Bytes moved in all rounds.
    pub moved_bytes: u64,
    /// Whether data was left where it is in this round, because its place was full.
    pub passed_over: bool,
}
