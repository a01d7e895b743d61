//! What is told of layouts.

pub use crate::disk::{Growth, RebuildProgress};
use crate::settings::LayoutShape;

/// The state of a layout: a physical volume whose content is on several disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutInfo {
    /// Name. The path of the physical volume is `mirror:NAME` or `raid5:NAME`.
    pub name: String,
    /// How the members hold the content.
    pub shape: LayoutShape,
    /// Number of members that may fail now, whichever they are.
    pub survives: usize,
    /// Number of members whose content has space on the others, whichever they are.
    pub reserve: usize,
    /// Whether the members take over what one had that is out.
    pub takes_over: bool,
    /// The members.
    pub members: Vec<MemberInfo>,
    /// What the layout gains when it has grown: it moves content in the background. `None`: it has
    /// all that its members can hold.
    pub growth: Option<Growth>,
}

/// A disk that waits for a member of a layout to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareInfo {
    /// Path as the operator gave it.
    pub path: String,
    /// Bytes for the content of a member; 0 if the disk can't be used.
    pub size: u64,
    /// Why the disk can't be used; empty if it can.
    pub problem: String,
}

/// The state of a member of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Path as the operator gave it.
    pub path: String,
    /// Bytes for content.
    pub size: u64,
    /// Bytes of the content and its parities that the member has. If it is out, this is what it
    /// lacks.
    pub content: u64,
    /// Whether the member has all content. One that is out is neither read nor written.
    pub is_in: bool,
    /// Why the member is out, or why its last rebuild ended; empty if it is in.
    pub reason: String,
    /// Bytes of `content` that may have changed since the member went out. Its disk has the rest
    /// when it comes back. `None`: that is not known, or the member is in.
    pub changed: Option<u64>,
    /// The disk that the member is rebuilt onto.
    pub incoming: Option<IncomingInfo>,
}

/// A disk that a member of a layout is rebuilt onto.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingInfo {
    /// Path as the operator gave it.
    pub path: String,
    /// How far the rebuild has come. `None`: it has taken no step since the pool was opened.
    pub progress: Option<RebuildProgress>,
}
