//! Traces of accesses to disks: what a disk read and wrote, where, why, and for how long.
//!
//! A physical volume that is one disk is traced as that disk. The members of a mirror are traced,
//! and not the mirror.
//!
//! - [`cause`]: why a thread accesses disks
//! - [`access`]: one access, and its bytes
//! - [`buffer`]: accesses that wait to be taken
//! - [`tracer`]: whether disks are traced, and the disks
//! - [`traced`]: a directory of disks that can be traced
//! - [`format`]: files with traces

mod access;
mod buffer;
mod cause;
mod format;
mod traced;
mod tracer;

pub use access::{ACCESS_LEN, AccessOp, DiskAccess};
pub use cause::Cause;
pub use format::{TraceDisk, TraceEncoder, TraceEnd, TraceHead, TracePiece, TraceReader};
pub(crate) use traced::TracingDir;
pub use tracer::TracePart;
pub(crate) use tracer::Tracer;

#[cfg(test)]
mod tests;
