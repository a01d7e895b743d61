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
mod dispatch;
mod events;
mod identity;
mod inquiry;
mod log;
mod lu;
mod medium;
mod mode;
mod opcodes;
mod outcome;
mod persist;
mod ports;
mod provisioning;
mod registrants;
mod reports;
mod reservation;
mod reserve;
mod sanitize;
mod sense;
mod state;
mod table;
mod target;
mod transport_id;
mod verify;

pub use command::{Command, ReadCommand, WriteCommand};
pub use events::{Event, Events};
pub(crate) use lu::LuNexus;
pub use lu::{LogicalUnit, LuOptions, LuStore, Scan, Space};
pub use opcodes::Task;
pub use outcome::{Outcome, Status};
pub use ports::{AccessState, MAX_LUN, PortGroup, TargetPort, lun_from_wire, lun_to_wire};
pub use registrants::{Registrant, rename_stored, retain_stored, stored_registrants, target_of_port};
pub use sense::{Asc, Sense, SenseKey};
pub use target::{Access, Limit, Nexus, NexusEvents, Target};
