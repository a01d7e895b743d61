//! Traces of accesses to the pool's disks. The caller writes them to a file.

use super::Pool;
use crate::disk::{TraceDisk, TraceHead, TracePart};
use crate::error::{Result, conflict};

impl Pool {
    /// Begins to trace all accesses to physical volumes. Until the trace ends, the caller takes the
    /// accesses often enough with [`Pool::take_trace`]: 64 MiB of them wait, and further ones are
    /// lost. Returns [`crate::ErrorKind::Conflict`] if a trace is under way.
    pub fn begin_trace(&self) -> Result<TraceHead> {
        let head = TraceHead { pool: self.core.uuid, started: self.core.world.clock.now() };
        match self.core.dir.tracer().begin() {
            true => Ok(head),
            false => Err(conflict("begin a trace: one is under way; `hindcast pool trace stop` ends it")),
        }
    }

    /// Takes the accesses that ended since the last call.
    pub fn take_trace(&self) -> TracePart {
        self.core.dir.tracer().take()
    }

    /// Ends the trace, if one is under way. Returns the accesses that ended since the last call of
    /// [`Pool::take_trace`].
    pub fn end_trace(&self) -> TracePart {
        self.core.dir.tracer().end()
    }

    /// Returns the disks that traces of this pool can have: physical volumes, and the members of
    /// those that are mirrors or RAID-5.
    pub fn traced_disks(&self) -> Vec<TraceDisk> {
        let tracer = self.core.dir.tracer();
        let mut disks = Vec::new();
        for pv in self.pvs() {
            let paths = match &pv.layout {
                None => vec![pv.path.clone()],
                Some(layout) => {
                    let incoming =
                        |member: &crate::info::layout::MemberInfo| Some(member.incoming.clone()?.path);
                    let members = layout.members.iter();
                    let paths = members.flat_map(|member| [Some(member.path.clone()), incoming(member)]);
                    paths.flatten().collect()
                }
            };
            disks.extend(paths.into_iter().filter_map(|path| {
                let (number, size) = tracer.find(&path)?;
                Some(TraceDisk { number, pv: pv.id, size, path, pv_path: pv.path.clone() })
            }));
        }
        disks
    }
}
