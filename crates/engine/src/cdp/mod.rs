//! Continuous data protection: every write of a volume between two snapshots.

pub mod model;
