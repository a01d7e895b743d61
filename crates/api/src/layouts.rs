//! Mirrors and RAID-5: physical volumes whose content is on several disks, their members, and spare
//! disks.

use crate::client::{Client, ClientError, segment};
use crate::{AddPv, Pv};
use hyper::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How several disks hold the content of a physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutKind {
    /// Each byte is on several disks.
    Mirror,
    /// Rows of units, of which one is the parity of the others.
    Raid5,
}

impl LayoutKind {
    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            LayoutKind::Mirror => "mirror",
            LayoutKind::Raid5 => "raid5",
        }
    }
}

/// A mirror or a RAID-5: a physical volume whose content is on several disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PvLayout {
    /// Name of the layout. The path of the physical volume is `mirror:NAME` or `raid5:NAME`.
    pub name: String,
    /// How the disks hold the content.
    pub kind: LayoutKind,
    /// Number of copies of each byte of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
    /// Number of units in a row of a RAID-5, with the parity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u64>,
    /// Bytes of a unit of a RAID-5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<u64>,
    /// Number of members that may fail now without loss, whichever they are.
    pub survives: u64,
    /// Number of members whose content has space on the others, whichever they are.
    #[serde(default)]
    pub reserve: u64,
    /// Whether the members take over what one had that is out.
    #[serde(default)]
    pub takes_over: bool,
    /// The members.
    pub members: Vec<Member>,
    /// What the layout gains when it has grown. Absent: it has all that its members can hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// What a mirror or a RAID-5 gains when it has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Growth {
    /// Bytes that the physical volume has then.
    pub size: u64,
    /// Bytes that move from full members to others first. Only what is in use is copied.
    pub moves: u64,
}

/// How a physical volume is to grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowPv {
    /// Disks that a mirror or RAID-5 gets. Without any, it uses the whole of the disks that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<AddPv>,
    /// Bytes that the file of a plain physical volume gets. Absent: its disk was made larger
    /// already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Largest number of bytes per second that are copied; 0 means no limit. Absent: what `hindcast
    /// serve --rebuild-rate` says. It holds until the server stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

/// A member of a mirror or of a RAID-5.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// File name in the data directory, or absolute path of a file or block device.
    pub path: String,
    /// Bytes for content.
    pub size: u64,
    /// Bytes of the content, copies and parities that the member has. If it is out, this is what
    /// another disk lacks: 0 if the others have taken it over.
    #[serde(default)]
    pub content: u64,
    /// Bytes of these that may have changed since the member went out. Its own disk has the rest
    /// when it comes back. Without a value, that is not known, or the member is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// State of the member.
    pub state: MemberState,
    /// Why the member is out, or why its last rebuild ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The disk that the member is rebuilt onto. A member that is in is replaced by this disk when
    /// it has everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onto: Option<String>,
    /// Bytes of content that the rebuild has copied since it began, or since the server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<u64>,
    /// Bytes of content in use that are still to be copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// Number of seconds that this takes if the pace stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It has all content, and is read and written.
    In,
    /// It is neither read nor written.
    Out,
    /// It gets its content again, and is written but not read.
    Rebuilding,
}

impl MemberState {
    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::In => "in",
            MemberState::Out => "out",
            MemberState::Rebuilding => "rebuilding",
        }
    }
}

/// A mirror or a RAID-5 to add to the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddLayout {
    /// Name of the layout: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// How the disks hold the content.
    pub kind: LayoutKind,
    /// Number of copies of each byte of a mirror: 2 to 4. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
    /// Number of units in a row of a RAID-5, with the parity: 3 to 16. Default: the number of
    /// disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u64>,
    /// Bytes of a unit of a RAID-5: a power of two from 4 KiB to 1 MiB. Default: 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<u64>,
    /// Number of disks whose content has space on the others, whichever they are. The space is kept
    /// free for that. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<u64>,
    /// The disks: at least as many as copies or columns, and at most 16. They may have different
    /// sizes.
    pub members: Vec<AddPv>,
    /// Let only volumes use it that are created for it (`on`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
}

/// A change to a member of a mirror or of a RAID-5.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchMember {
    /// `out`: neither read nor write the member any more. `in`: give it its content again.
    pub state: MemberTarget,
    /// With `in`: the disk that takes the place of the member's. Absent: the member's own disk,
    /// which gets only what has changed, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onto: Option<AddPv>,
    /// With `in`: largest number of bytes per second that the rebuild copies; 0 means no limit.
    /// Absent: what `hindcast serve --rebuild-rate` says. It holds until the server stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

/// A disk that waits for a member of a mirror or of a RAID-5 to fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpareDisk {
    /// File name in the data directory, or absolute path of a file or block device.
    pub path: String,
    /// Bytes for the content of a member; 0 if the disk can't be used.
    pub size: u64,
    /// Why the disk can't be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The state that a member is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemberTarget {
    /// It has all content.
    In,
    /// It is neither read nor written.
    Out,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

impl Client {
    /// Makes a mirror or a RAID-5 of disks, and adds it to the pool.
    pub fn add_layout(&self, layout: &AddLayout) -> Result<Pv> {
        self.send(Method::POST, "/pool/layouts", layout)
    }

    /// Makes a physical volume larger. `pv` is its path, its UUID, its number, or the name of a
    /// mirror or RAID-5.
    pub fn grow_pv(&self, pv: &str, how: &GrowPv) -> Result<Pv> {
        self.send(Method::POST, &format!("/pool/pvs/{}/grow", segment(pv)), how)
    }

    /// Changes a member of a mirror or of a RAID-5. `member` is its path.
    pub fn patch_member(&self, member: &str, patch: &PatchMember) -> Result<PvLayout> {
        self.send(Method::PATCH, &format!("/pool/members/{}", segment(member)), patch)
    }

    /// Returns the spare disks.
    pub fn spares(&self) -> Result<Vec<SpareDisk>> {
        self.get("/pool/spares")
    }

    /// Adds a spare disk.
    pub fn add_spare(&self, disk: &AddPv) -> Result<SpareDisk> {
        self.send(Method::POST, "/pool/spares", disk)
    }

    /// Removes a spare disk.
    pub fn remove_spare(&self, path: &str) -> Result<()> {
        self.delete(&format!("/pool/spares/{}", segment(path)))
    }
}
