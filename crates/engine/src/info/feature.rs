//! The features of a pool, as users see them.

/// Whether a pool has a feature, and how it can get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureState {
    /// The pool has it. Builds that do not know it refuse the pool.
    Enabled,
    /// An upgrade enables it.
    Available,
    /// An upgrade enables it if its name is given.
    Experimental,
    /// The pool does not have it, and sets it by itself when it needs it.
    Internal,
}

/// A format that not every build knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureInfo {
    /// Name.
    pub name: &'static str,
    /// What it is: one sentence.
    pub about: &'static str,
    /// Whether the pool has it.
    pub state: FeatureState,
}
