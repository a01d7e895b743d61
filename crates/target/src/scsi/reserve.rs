//! PERSISTENT RESERVE IN and OUT (SPC-4 6.15, 6.16), RESERVE(6) and RELEASE(6) (SPC-2 7.22, 7.17).

use super::lu::gate;
use super::medium::writing;
use super::opcodes::Task;
use super::outcome::{Ending, Reply, Status};
use super::reservation::{MAX_REGISTRATIONS, Name, News, Refusal, Registration, Reservations, Type};
use super::sense::{Asc, Sense};
use super::transport_id;
use bytes::Bytes;

/// Carries out PERSISTENT RESERVE IN.
pub(crate) fn reserve_in(task: &Task, _: &Bytes) -> Reply {
    let reservations = task.lu().reservations.lock();
    let mut data = reservations.generation.to_be_bytes().to_vec();
    data.extend([0; 4]);
    match task.cdb.u8(1) & 0x1f {
        0x00 => reservations.registrations.iter().for_each(|r| data.extend(r.key.to_be_bytes())),
        0x01 => {
            if let Some(reservation) = &reservations.reservation {
                data.extend(reservations.reservation_key().to_be_bytes());
                data.extend([0, 0, 0, 0, 0, reservation.kind as u8, 0, 0]);
            }
        }
        0x02 => return Ok(capabilities(task, &reservations)),
        _ => full_status(task, &reservations, &mut data),
    }
    let len = u32::try_from(data.len() - 8).unwrap_or(u32::MAX);
    data[4..8].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}

/// Returns the data of REPORT CAPABILITIES (SPC-4 6.15.4).
fn capabilities(task: &Task, reservations: &Reservations) -> Vec<u8> {
    let keeps = task.lu().store.is_some();
    let mut data = vec![0; 8];
    data[1] = 8;
    data[2] = 0x0c | u8::from(keeps); // SIP_C, ATP_C, PTPL_C
    data[3] = 0x80 | u8::from(reservations.aptpl); // TMV, PTPL_A
    data[4] = 0xea; // every type
    data[5] = 0x01;
    data
}

/// Appends the data of READ FULL STATUS (SPC-4 6.15.5). It reports only registrations by the ports
/// of the nexus' own target, because relative port identifiers refer to these ports. An initiator
/// gets no report about the initiators of other targets.
fn full_status(task: &Task, reservations: &Reservations, data: &mut Vec<u8>) {
    let ports = task.nexus.target.ports();
    let own: Vec<_> = ports.iter().map(|port| task.lu().registered_name(port)).collect();
    for registration in reservations.registrations.iter().filter(|r| own.contains(&r.name.port)) {
        let holder = reservations.holds(&registration.name);
        let kind = reservations.reservation.as_ref().filter(|_| holder).map_or(0, |r| r.kind as u8);
        let id = transport_id::encode(&registration.name.initiator);
        data.extend(registration.key.to_be_bytes());
        data.extend([0; 4]);
        data.push(u8::from(registration.all_ports) << 1 | u8::from(holder));
        data.push(kind);
        data.extend([0; 4]);
        data.extend(registration.relative_id.to_be_bytes());
        data.extend(u32::try_from(id.len()).unwrap_or(0).to_be_bytes());
        data.extend(id);
    }
}

/// The parameter list of PERSISTENT RESERVE OUT (SPC-4 6.16.3).
struct Parameters<'a> {
    key: u64,
    action_key: u64,
    bytes: &'a [u8],
}

impl Parameters<'_> {
    fn flag(&self, byte: usize, bit: u8) -> bool {
        self.bytes[byte] & (1 << bit) != 0
    }
}

const SPEC_I_PT: (usize, u8) = (20, 3);
const ALL_TG_PT: (usize, u8) = (20, 2);
const APTPL: (usize, u8) = (20, 0);

/// Parses the part of the parameter list that all service actions share.
fn parameters(list: &Bytes, wanted: u64, moves: bool) -> Result<Parameters<'_>, Sense> {
    let error = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    if list.len() < 24 || (list.len() as u64) < wanted {
        return Err(error);
    }
    let number = |at: usize| u64::from_be_bytes(list[at..at + 8].try_into().unwrap_or_default());
    let parameters = Parameters { key: number(0), action_key: number(8), bytes: list };
    let longer = moves || parameters.flag(SPEC_I_PT.0, SPEC_I_PT.1);
    if longer || list.len() == 24 { Ok(parameters) } else { Err(error) }
}

/// Carries out PERSISTENT RESERVE OUT.
pub(crate) fn reserve_out(task: &Task, list: &Bytes) -> Reply {
    let cdb = &task.cdb;
    let action = cdb.u8(1) & 0x1f;
    let list = list.slice(..list.len().min(usize::try_from(task.data_out_len()).unwrap_or(usize::MAX)));
    let parameters = parameters(&list, task.data_out_len(), action == 0x07)?;
    let (kind, scope) = (Type::from_wire(cdb.u8(2) & 0x0f), cdb.u8(2) >> 4);
    if matches!(action, 0x01 | 0x02) && (scope != 0 || kind.is_none()) {
        return Err(Sense::cdb_field(2).into());
    }
    if matches!(action, 0x04 | 0x05) && scope != 0 {
        return Err(Sense::cdb_field(2).into());
    }
    let own = task.path.name();
    let (key, action_key) = (parameters.key, parameters.action_key);
    match action {
        0x00 | 0x06 => register(task, &parameters, (action == 0x00).then_some(key)),
        0x01 => change(task, |r| match kind {
            Some(kind) => r.reserve(&own, key, kind),
            None => Err(Sense::cdb_field(2).into()),
        }),
        0x02 => change(task, |r| r.release(&own, key, kind)),
        0x03 => change(task, |r| r.clear(&own, key)),
        0x04 | 0x05 => change(task, |r| r.preempt(&own, key, action_key, kind, action == 0x05)),
        _ => register_and_move(task, &parameters),
    }
}

/// Carries out REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4 5.12.7).
fn register(task: &Task, parameters: &Parameters<'_>, key: Option<u64>) -> Reply {
    let flag = |(byte, bit)| parameters.flag(byte, bit);
    let aptpl = check_aptpl(task, flag(APTPL), 20)?;
    let specifies = flag(SPEC_I_PT);
    if specifies && key.is_none() {
        return Err(Sense::parameter_field(20).into());
    }
    let own = task.path.name();
    let mut initiators = vec![own.initiator.clone()];
    if specifies {
        if task.lu().reservations.lock().key_of(&own).is_some() {
            return Err(Sense::parameter_field(20).into());
        }
        initiators.extend(specified(task, parameters.bytes)?);
    }
    let ports = if flag(ALL_TG_PT) { task.nexus.target.ports() } else { vec![task.path.port.clone()] };
    let mut names = Vec::new();
    for initiator in &initiators {
        for port in &ports {
            let name = Name { initiator: initiator.clone(), port: task.lu().registered_name(port) };
            let (relative_id, all_ports) = (port.relative_id, flag(ALL_TG_PT));
            names.push(Registration { name, key: parameters.action_key, relative_id, all_ports });
        }
    }
    // The nexus of the command must be first, because its key is checked.
    names.sort_by_key(|r| r.name != own);
    change(task, |r| r.register(&names, key, parameters.action_key, aptpl))
}

/// Returns the initiator ports that SPEC_I_PT lists (SPC-4 6.16.3).
fn specified(task: &Task, bytes: &[u8]) -> Result<Vec<std::sync::Arc<str>>, Ending> {
    let length_error = || Ending::from(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    let list = bytes.get(24..).ok_or_else(length_error)?;
    let (len, mut rest) = list.split_first_chunk::<4>().ok_or_else(length_error)?;
    if u32::from_be_bytes(*len) as usize != rest.len() {
        return Err(length_error());
    }
    let mut initiators = Vec::new();
    while !rest.is_empty() {
        if initiators.len() > MAX_REGISTRATIONS {
            return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        let (initiator, used) = transport_id::decode(rest).ok_or_else(|| Sense::parameter_field(28))?;
        rest = rest.get(used..).ok_or_else(length_error)?;
        match initiator.contains(",i,0x") {
            true => initiators.push(initiator),
            // A device name means all ports of the device that have a nexus with the logical unit.
            false => {
                let known = device_ports(task, &initiator);
                if known.is_empty() {
                    return Err(Sense::parameter_field(28).into());
                }
                initiators.extend(known);
            }
        }
    }
    Ok(initiators)
}

/// Returns the ports of an initiator device that have a nexus with the logical unit.
fn device_ports(task: &Task, device: &str) -> Vec<std::sync::Arc<str>> {
    let mut ports: Vec<_> = task.lu().paths().iter().map(|p| p.initiator.clone()).collect();
    ports.retain(|p| p.split_once(",i,").is_some_and(|(name, _)| name == device));
    ports.sort();
    ports.dedup();
    ports
}

/// Carries out REGISTER AND MOVE (SPC-4 6.16.4).
fn register_and_move(task: &Task, parameters: &Parameters<'_>) -> Reply {
    let bytes = parameters.bytes;
    let aptpl = check_aptpl(task, parameters.flag(17, 0), 17)?;
    let relative_id = u16::from_be_bytes([bytes[18], bytes[19]]);
    let len = u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]) as usize;
    let id = &bytes[24..];
    if id.len() != len || len < 24 {
        return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let (initiator, _) = transport_id::decode(id).ok_or_else(|| Sense::parameter_field(24))?;
    let initiator = match initiator.contains(",i,0x") {
        true => initiator,
        false => match &device_ports(task, &initiator)[..] {
            [only] => only.clone(),
            _ => return Err(Sense::parameter_field(24).into()),
        },
    };
    let ports = task.nexus.target.ports();
    let port =
        ports.iter().find(|p| p.relative_id == relative_id).ok_or_else(|| Sense::parameter_field(18))?;
    let name = Name { initiator, port: task.lu().registered_name(port) };
    let to = Registration { name, key: parameters.action_key, relative_id, all_ports: false };
    let own = task.path.name();
    change(task, |r| r.register_and_move(&own, parameters.key, &to, parameters.flag(17, 1), aptpl))
}

/// Checks APTPL. It needs a logical unit with a store.
fn check_aptpl(task: &Task, aptpl: bool, byte: usize) -> Result<bool, Sense> {
    if aptpl && task.lu().store.is_none() { Err(Sense::parameter_field(byte)) } else { Ok(aptpl) }
}

/// Carries out a change of reservations. It makes the change durable if APTPL requires this. It
/// then establishes the unit attentions and aborts tasks.
fn change(task: &Task, f: impl FnOnce(&mut Reservations) -> Result<News, Refusal>) -> Reply {
    let lu = task.lu();
    let news = {
        let changing = lu.changing.lock();
        if lu.gates() & gate::RESERVED != 0 {
            return Err(Ending::Status(Status::ReservationConflict)); // RESERVE(6) came meanwhile
        }
        let mut changed = lu.reservations.lock().clone();
        let news = f(&mut changed)?;
        lu.commit(&changing, changed).map_err(writing)?;
        news
    };
    lu.tell(&news, Some(&task.path));
    Ok(Vec::new())
}

/// Carries out RESERVE(6). It conflicts with any registration, because persistent reservations have
/// priority (SPC-4 5.12.1).
pub(crate) fn reserve6(task: &Task, _: &Bytes) -> Reply {
    let lu = task.lu();
    let _one_at_a_time = lu.changing.lock();
    if !lu.reservations.lock().registrations.is_empty() {
        return Err(Ending::Status(Status::ReservationConflict));
    }
    let mut holder = lu.reserved_by.lock();
    if holder.is_some_and(|h| h != task.path.number) {
        return Err(Ending::Status(Status::ReservationConflict));
    }
    *holder = Some(task.path.number);
    lu.set_gate(gate::RESERVED, true);
    Ok(Vec::new())
}

/// Carries out RELEASE(6). It has no effect if another nexus holds the reservation.
pub(crate) fn release6(task: &Task, _: &Bytes) -> Reply {
    if !task.lu().reservations.lock().registrations.is_empty() {
        return Err(Ending::Status(Status::ReservationConflict));
    }
    task.lu().release_by(task.path.number);
    Ok(Vec::new())
}
