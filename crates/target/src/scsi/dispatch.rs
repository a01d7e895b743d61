//! The start of every command: it decodes the CDB, and checks whether the command is allowed.

use super::cdb::{Blocks, Cdb};
use super::command::{Command, ReadCommand, WriteCommand};
use super::lu::{LuNexus, gate};
use super::opcodes::{self, Kind, Length, MAX_TRANSFER_BYTES, Op, Reserve, Task};
use super::outcome::{Outcome, Status};
use super::reservation::Want;
use super::sense::{Asc, Sense, SenseKey};
use super::table::TABLE;
use super::target::Nexus;
use super::{inquiry, reports};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Nexus {
    /// Starts a command. `lun` is the LUN field of the request. The function finds the logical
    /// unit, reports a unit attention, and checks reservations, access, protection and range. The
    /// transport then transfers the data, and runs the command. `data_out` is the number of bytes
    /// that the initiator will send. Some commands require exactly the length that their CDB
    /// implies.
    pub fn start(self: &Arc<Self>, lun: u64, cdb: &[u8], data_out: u64) -> Command {
        let cdb = Cdb::new(cdb);
        let Some(path) = self.path(lun) else {
            return Command::Done(without_lu(self, &cdb));
        };
        let fences = path.fences(); // before it is known to be allowed
        match self.check(&path, &cdb) {
            Ok(op) => self.accept((path, fences), op, cdb, data_out),
            Err(outcome) => Command::Done(outcome),
        }
    }

    /// Makes the checks that need no command-specific field of the CDB.
    fn check(&self, path: &LuNexus, cdb: &Cdb) -> Result<&'static Op, Outcome> {
        let op = TABLE.find(cdb);
        if op.as_ref().map_or(true, |op| !op.has(opcodes::ANY_TIME))
            && let Some(attention) = path.take_attention()
        {
            return Err(path.check(attention));
        }
        let op = op.map_err(|sense| path.check(sense))?;
        if !reports::has(&path.lu, op) {
            return Err(path.check(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE)));
        }
        let gates = path.lu.gates();
        if gates & !gate::MANNERS != 0 {
            check_gates(path, op, cdb, gates)?;
        }
        if op.has(opcodes::WRITES | opcodes::GOVERNS) {
            let read_only = path.read_only.load(Ordering::Acquire);
            if read_only || op.has(opcodes::WRITES) && path.lu.info().read_only {
                return Err(path.check(Sense::new(SenseKey::DataProtect, Asc::WRITE_PROTECTED)));
            }
        }
        if op.has(opcodes::WRITES) && gates & gate::SOFT_PROTECTED != 0 {
            return Err(path.check(Sense::new(SenseKey::DataProtect, Asc::SOFTWARE_WRITE_PROTECTED)));
        }
        let control = op.len() - 1;
        if cdb.u8(control) & 0x04 != 0 {
            return Err(path.check(Sense::cdb_bit(control, 2))); // NACA
        }
        Ok(op)
    }

    /// Checks the fields that many commands share. A plain READ or WRITE takes the fast path; any
    /// other command becomes a task.
    fn accept(
        self: &Arc<Self>,
        (path, fences): (Arc<LuNexus>, u64),
        op: &'static Op,
        cdb: Cdb,
        data_out: u64,
    ) -> Command {
        match try_accept(&path, op, &cdb, data_out) {
            Ok(Some((offset, len))) if op.kind == Kind::Read => {
                Command::Read(ReadCommand { path, offset, len })
            }
            Ok(Some((offset, len))) => {
                let fua = cdb.group_len() > 6 && cdb.bit(1, 3) || path.lu.gates() & gate::WRITE_THROUGH != 0;
                Command::Write(WriteCommand { path, fences, offset, len, fua })
            }
            Ok(None) => Command::Other(Task::new(self.clone(), (path, fences), (op, &TABLE), cdb)),
            Err(outcome) => Command::Done(outcome),
        }
    }
}

/// Returns the outcome of a command to a logical unit that does not exist (SPC-4 6.4.2, 6.33,
/// 6.39). INQUIRY, REPORT LUNS and REQUEST SENSE return their data in this case too.
fn without_lu(nexus: &Nexus, cdb: &Cdb) -> Outcome {
    let not_supported = Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    let (mut data, limit) = match cdb.code() {
        0x12 if !cdb.bit(1, 0) && cdb.u8(2) == 0 => (inquiry::absent(), usize::from(cdb.u16(3))),
        0xa0 => match inquiry::luns_of(nexus, cdb) {
            Ok(data) => (data, cdb.u32(6) as usize),
            Err(sense) => return Outcome::check(sense),
        },
        0x03 => {
            (Sense { descriptor_format: cdb.bit(1, 0), ..not_supported }.to_bytes(), usize::from(cdb.u8(4)))
        }
        _ => return Outcome::check(not_supported),
    };
    data.truncate(limit);
    Outcome::data(data)
}

/// Checks reservations, a sanitize operation, and the state of the unit and the port.
fn check_gates(path: &LuNexus, op: &Op, cdb: &Cdb, gates: u32) -> Result<(), Outcome> {
    if gates & (gate::PERSISTENT | gate::RESERVED) != 0 && conflicts(path, op, cdb, gates) {
        return Err(Outcome::status(Status::ReservationConflict));
    }
    if gates & gate::SANITIZE != 0 && !op.has(opcodes::SANITIZING) {
        let again = op.code() == 0x48 && path.lu.sanitize.may_try_again();
        if let Some(sense) = path.lu.sanitize.sense().filter(|_| !again) {
            return Err(path.check(sense));
        }
    }
    if gates & gate::PORT_GROUPS != 0 && op.has(opcodes::MEDIUM) {
        let groups = path.lu.port_groups.read();
        let own = groups.iter().find(|g| g.ports.contains(&path.port.relative_id));
        if let Some(sense) = own.and_then(|group| group.state.sense()) {
            return Err(path.check(sense));
        }
    }
    if gates & gate::STOPPED != 0 && op.has(opcodes::MEDIUM) {
        return Err(path.check(Sense::new(SenseKey::NotReady, Asc::INITIALIZING_COMMAND_REQUIRED)));
    }
    Ok(())
}

/// Returns whether the command ends with RESERVATION CONFLICT (SPC-4 table 48, SBC-3 table 6; SPC-2
/// table 10).
fn conflicts(path: &LuNexus, op: &Op, cdb: &Cdb, gates: u32) -> bool {
    if gates & gate::RESERVED != 0 {
        // While RESERVE(6) is in force, PREVENT ALLOW MEDIUM REMOVAL may only allow removal.
        let free = op.has(opcodes::UNRESERVED) && !(op.code() == 0x1e && cdb.u8(4) & 3 != 0);
        let own = path.lu.reserved_by.lock().is_none_or(|number| number == path.number);
        if !own && !free || own && op.code() == 0x5f {
            return true;
        }
    }
    if gates & gate::PERSISTENT == 0 {
        return false;
    }
    let starts = cdb.bit(4, 0) && cdb.u8(4) >> 4 == 0;
    let want = match op.reserve {
        Reserve::Free => return false,
        Reserve::Start if starts => return false,
        Reserve::Prevent if cdb.u8(4) & 3 == 0 => return false,
        Reserve::Read => Want::Read,
        Reserve::Registered => Want::Registered,
        Reserve::Write | Reserve::Start | Reserve::Prevent => Want::Write,
    };
    !path.lu.reservations.lock().allows(&path.name(), want)
}

/// Longest parameter list of a command, in bytes. The server allocates memory for a list before the
/// list arrives. PERSISTENT RESERVE OUT has the longest list, with a TransportID for each
/// initiator.
const MAX_PARAMETER_LIST: u64 = 256 << 10;

/// Checks the fields that many commands share. Returns the byte offset and the length in bytes for
/// a command of the fast path. Returns `None` for any other command.
fn try_accept(path: &LuNexus, op: &Op, cdb: &Cdb, data_out: u64) -> Result<Option<(u64, u32)>, Outcome> {
    let fail = |sense| Err(path.check(sense));
    if op.has(opcodes::PROTECT) && cdb.u8(1) & 0xe0 != 0 {
        return fail(Sense::cdb_bit(1, 7)); // there is no protection information
    }
    if op.has(opcodes::STRICT)
        && let Some(byte) =
            (1..op.len()).find(|&n| cdb.u8(n) & !(op.usage[n] | if n == 1 { 0x1f } else { 0 }) != 0)
    {
        return fail(Sense::cdb_field(byte));
    }
    let info = path.lu.info();
    let mut range = (0, 0);
    if op.has(opcodes::RANGE) {
        range = match Blocks::of(cdb).on(info.size, info.block_size) {
            Ok(range) => range,
            Err(sense) => return fail(sense),
        };
    }
    let taken = op.data_out.bytes(cdb, path.lu.block_size());
    if matches!(op.data_out, Length::Field(..)) && taken > MAX_PARAMETER_LIST {
        return fail(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    }
    let sent = if op.kind == Kind::Read { range.1 } else { 0 };
    if taken.max(sent) > MAX_TRANSFER_BYTES || op.has(opcodes::EXACT) && taken != data_out {
        return fail(Sense::illegal(Asc::INVALID_FIELD_IN_CDB));
    }
    let durable_read = op.kind == Kind::Read && op.len() > 6 && cdb.bit(1, 3);
    if op.kind == Kind::Task || durable_read {
        return Ok(None);
    }
    match u32::try_from(range.1) {
        Ok(0) => Err(Outcome::good()),
        Ok(len) => Ok(Some((range.0, len))),
        Err(_) => fail(Sense::illegal(Asc::INVALID_FIELD_IN_CDB)),
    }
}
