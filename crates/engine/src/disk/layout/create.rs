//! The creation of a mirror.

use super::member::{CONTENT_START, write_header};
use super::record::{LayoutRecord, MemberRecord};
use super::spans::{UNIT, spread};
use crate::disk::{Dir, Disk};
use std::io;
use std::sync::Arc;
use uuid::Uuid;

/// A disk that becomes a member. Nothing of its content is needed.
pub(crate) struct NewMember {
    pub(crate) uuid: Uuid,
    pub(crate) path: String,
    pub(crate) disk: Arc<dyn Disk>,
}

impl NewMember {
    /// Returns the number of bytes for content.
    pub(crate) fn capacity(&self) -> io::Result<u64> {
        Ok(self.disk.len()?.saturating_sub(CONTENT_START) / UNIT * UNIT)
    }
}

/// Makes a mirror of new members, durably. A mirror with this name is replaced.
pub(crate) fn create(
    dir: &dyn Dir,
    name: &str,
    uuid: Uuid,
    copies: usize,
    members: &[NewMember],
) -> io::Result<()> {
    let sizes = members.iter().map(NewMember::capacity).collect::<io::Result<Vec<u64>>>()?;
    let spans = spread(&sizes, copies, CONTENT_START);
    if spans.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the members are too small"));
    }
    let of = |(member, capacity): (&NewMember, &u64)| MemberRecord {
        uuid: member.uuid,
        path: member.path.clone(),
        is_in: true,
        capacity: *capacity,
        reason: String::new(),
        incoming: None,
    };
    let records = members.iter().zip(&sizes).map(of).collect();
    let record = LayoutRecord { uuid, sequence: 1, copies, members: records, spans };
    members.iter().try_for_each(|member| write_header(&*member.disk, &member.uuid, &record))?;
    record.save(dir, name)
}
