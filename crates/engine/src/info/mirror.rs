//! What is told of mirrors.

/// The state of a mirror: a physical volume whose content is on several disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorInfo {
    /// Name. The path of the physical volume is `mirror:NAME`.
    pub name: String,
    /// Number of copies of each byte.
    pub copies: usize,
    /// Number of members that may fail now, whichever they are.
    pub survives: usize,
    /// The members.
    pub members: Vec<MemberInfo>,
}

/// The state of a member of a mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// Path as the operator gave it.
    pub path: String,
    /// Bytes for content.
    pub size: u64,
    /// Whether the member has all content. One that is out is neither read nor written.
    pub is_in: bool,
    /// Why the member is out, or why its last rebuild ended; empty if it is in.
    pub reason: String,
    /// The disk that the member is rebuilt onto, and the byte of the mirror up to which it has the
    /// content, as it was last stored.
    pub incoming: Option<(String, u64)>,
}
