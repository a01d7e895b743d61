//! The SCSI device server (SAM-5, SPC-4, SBC-3): it takes commands and returns outcomes. It knows
//! no network. A transport such as iSCSI carries its commands, data and outcomes.
//!
//! ```text
//! Target ── LUN inventory ──> LogicalUnit ──> BlockDevice
//!   └─ attach(initiator port) -> Nexus ── start(lun, cdb) -> Command ── run(data out) -> Outcome
//! ```
//!
//! `table` is the single table of commands. Decoding, reservations, write protection, and REPORT
//! SUPPORTED OPERATION CODES with its usage bitmaps all use it.

mod alua;
mod cdb;
mod command;
mod copy;
mod inquiry;
mod log;
mod lu;
mod medium;
mod mode;
mod nexus;
mod opcodes;
mod persist;
mod provisioning;
mod registrants;
mod reports;
mod reservation;
mod reserve;
mod sanitize;
mod sense;
mod table;
mod target;
mod transport_id;
mod verify;

pub use alua::{AccessState, PortGroup};
pub use command::{Command, Outcome, ReadCommand, Status, Task, WriteCommand};
pub use lu::{LogicalUnit, LuOptions, LuStore, Space};
pub use nexus::{Access, Event, Limit, Nexus, NexusEvents};
pub use registrants::{Registrant, rename_stored, retain_stored, stored_registrants, target_of_port};
pub use sense::{Asc, Sense, SenseKey};
pub use target::{MAX_LUN, Target, TargetPort, lun_from_wire, lun_to_wire};
