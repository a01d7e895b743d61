//! Asymmetric logical unit access (SPC-4 5.16): target port groups and their states.
//!
//! A server that serves the pool alone has one group, which is active and optimized. Servers that
//! share a pool set the groups and states by [`super::LogicalUnit::set_port_groups`]. Initiators
//! cannot change states (implicit ALUA only).

use super::opcodes::Task;
use super::outcome::Reply;
use super::ports::{AccessState, PortGroup};
use super::sense::Sense;
use bytes::Bytes;

/// The group of a server that serves the pool alone. It contains all ports of the target.
pub(crate) const LONE_GROUP: u16 = 1;

/// Returns the target port groups that an initiator sees.
fn groups(task: &Task) -> Vec<PortGroup> {
    let groups = task.lu().port_groups.read();
    if !groups.is_empty() {
        return groups.clone();
    }
    let ports = task.nexus.target.ports().iter().map(|p| p.relative_id).collect();
    vec![PortGroup { id: LONE_GROUP, preferred: true, state: AccessState::ActiveOptimized, ports }]
}

/// Returns the group of the target port that received the command.
pub(crate) fn group_of(task: &Task) -> u16 {
    let port = task.path.port.relative_id;
    groups(task).iter().find(|g| g.ports.contains(&port)).map_or(LONE_GROUP, |g| g.id)
}

/// Carries out REPORT TARGET PORT GROUPS (SPC-4 6.37).
pub(crate) fn report_target_port_groups(task: &Task, _: &Bytes) -> Reply {
    let mut data = match task.cdb.u8(1) >> 5 {
        0 => vec![0; 4],
        1 => vec![0, 0, 0, 0, 0x10, 0, 0, 0],
        _ => return Err(Sense::cdb_bit(1, 7).into()),
    };
    for group in groups(task) {
        data.extend([u8::from(group.preferred) << 7 | group.state as u8, 0x8f]);
        data.extend(group.id.to_be_bytes());
        data.extend([0, 0x02, 0, group.ports.len() as u8]); // changed implicitly
        for port in group.ports {
            data.extend([0, 0]);
            data.extend(port.to_be_bytes());
        }
    }
    let len = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
    data[..4].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}
