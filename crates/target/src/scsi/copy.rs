//! EXTENDED COPY(LID1) between block devices, and RECEIVE COPY RESULTS (SPC-4 5.17, 6.3, 6.24 to
//! 6.29).

use super::identity::is_designated;
use super::lu::{LuNexus, gate};
use super::medium::STEP;
use super::opcodes::Task;
use super::outcome::{Ending, Reply};
use super::reservation::Want;
use super::sense::{self, Asc, During, Sense, SenseKey};
use super::state::Record;
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// MAXIMUM CSCD DESCRIPTOR COUNT and MAXIMUM SEGMENT DESCRIPTOR COUNT.
pub(crate) const MAX_DESCRIPTORS: usize = 16;
const TARGET_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;
/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes.
pub(crate) const MAX_LIST: usize = MAX_DESCRIPTORS * (TARGET_LEN + SEGMENT_LEN);
/// Results of ended copies that one logical unit keeps at most. The oldest result is dropped first.
const MAX_REMEMBERED: usize = 64;
/// Types of the supported descriptors: the identification descriptor CSCD descriptor, and the block
/// device to block device segment descriptor.
pub(crate) const DESCRIPTOR_TYPES: [u8; 2] = [0x02, 0xe4];

/// One segment descriptor (SPC-4 6.3.7.5).
struct Segment {
    /// DC: whether `blocks` counts blocks of the destination, and not of the source.
    of_destination: bool,
    source: usize,
    destination: usize,
    blocks: u64,
    from: u64,
    to: u64,
}

/// A parsed parameter list of EXTENDED COPY.
struct List<'a> {
    id: u8,
    keep: bool,
    targets: &'a [u8],
    segments: &'a [u8],
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn copy_aborted(asc: Asc) -> Sense {
    Sense::new(SenseKey::CopyAborted, asc)
}

/// Carries out EXTENDED COPY.
pub(crate) fn extended_copy(task: &Task, list: &Bytes) -> Reply {
    if task.data_out_len() == 0 {
        return Ok(Vec::new());
    }
    let list = parse(task, list)?;
    let targets = targets(task, &list)?;
    let segments = segments(&list)?;
    let (mut done, mut bytes) = (0, 0);
    let mut result = Ok(());
    for segment in &segments {
        result = copy(task, &targets, segment, &mut bytes);
        if result.is_err() {
            break;
        }
        done += 1;
    }
    if list.keep {
        let sense = match &result {
            Err(Ending::Check(sense)) => Some(sense.clone()),
            _ => None,
        };
        remember(
            task,
            Record { initiator: task.path.initiator.clone(), list_id: list.id, segments: done, bytes, sense },
        );
    }
    result.map(|()| Vec::new())
}

fn remember(task: &Task, record: Record) {
    let mut records = task.lu().copies.lock();
    records.retain(|r| (&r.initiator, r.list_id) != (&record.initiator, record.list_id));
    records.push_back(record);
    if records.len() > MAX_REMEMBERED {
        records.pop_front();
    }
}

/// Parses the parameter list of EXTENDED COPY (SPC-4 6.3.1).
fn parse<'a>(task: &Task, list: &'a Bytes) -> Result<List<'a>, Sense> {
    let length_error = || Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let len = usize::try_from(task.data_out_len()).unwrap_or(usize::MAX);
    if list.len() < len || len < 16 {
        return Err(length_error());
    }
    let (targets, segments) = (be(&list[2..4]) as usize, be(&list[8..12]) as usize);
    if be(&list[12..16]) != 0 {
        return Err(Sense::illegal(Asc::INLINE_DATA_LENGTH_EXCEEDED));
    }
    if targets + segments > MAX_LIST {
        return Err(length_error());
    }
    let end = 16 + targets + segments;
    if end > len {
        return Err(length_error());
    }
    if targets % TARGET_LEN != 0 {
        return Err(Sense::parameter_field(2));
    }
    if targets / TARGET_LEN > MAX_DESCRIPTORS {
        return Err(Sense::illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS));
    }
    let usage = (list[1] >> 3) & 3;
    if usage == 1 || (usage == 3 && list[0] != 0) {
        return Err(Sense::parameter_field(1));
    }
    Ok(List {
        id: list[0],
        keep: usage != 3,
        targets: &list[16..16 + targets],
        segments: &list[16 + targets..end],
    })
}

/// Returns the logical units of the CSCD descriptors (SPC-4 6.3.6.4). The initiator must see them
/// by this session, or by another of its sessions with this server. An entry is `None` if the
/// logical unit is not reachable. A segment that uses such an entry fails.
fn targets(task: &Task, list: &List<'_>) -> Result<Vec<Option<Arc<LuNexus>>>, Sense> {
    let reachable = task.nexus.reachable();
    let mut targets = Vec::new();
    for (n, descriptor) in list.targets.chunks_exact(TARGET_LEN).enumerate() {
        let at = 16 + n * TARGET_LEN;
        if descriptor[0] != 0xe4 {
            return Err(Sense::illegal(Asc::UNSUPPORTED_TARGET_DESCRIPTOR));
        }
        // LU ID TYPE and NUL are obsolete. The device server ignores them.
        if descriptor[1] & 0x1f != 0 {
            return Err(Sense::parameter_field(at + 1)); // not a block device
        }
        let len = usize::from(descriptor[7]);
        let designator = descriptor[8..].get(..len.min(20)).unwrap_or_default();
        let named =
            |path: &&Arc<LuNexus>| is_designated(&path.lu, descriptor[4] & 0x0f, descriptor[5], designator);
        let path = reachable.iter().find(named).filter(|_| len <= 20).cloned();
        if let Some(path) = &path
            && be(&descriptor[29..32]) != path.lu.block_size()
        {
            return Err(Sense::parameter_field(at + 29));
        }
        targets.push(path);
    }
    Ok(targets)
}

fn segments(list: &List<'_>) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    let mut rest = list.segments;
    while let Some(&kind) = rest.first() {
        let at = 16 + list.targets.len() + (list.segments.len() - rest.len());
        if kind != 0x02 {
            return Err(Sense::illegal(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR));
        }
        let Some(descriptor) = rest.get(..SEGMENT_LEN) else {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
        };
        if be(&descriptor[2..4]) as usize != SEGMENT_LEN - 4 {
            return Err(Sense::parameter_field(at + 2));
        }
        segments.push(Segment {
            of_destination: descriptor[1] & 2 != 0,
            source: be(&descriptor[4..6]) as usize,
            destination: be(&descriptor[6..8]) as usize,
            blocks: be(&descriptor[10..12]),
            from: be(&descriptor[12..20]),
            to: be(&descriptor[20..28]),
        });
        rest = &rest[SEGMENT_LEN..];
    }
    if segments.len() > MAX_DESCRIPTORS {
        return Err(Sense::illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    Ok(segments)
}

/// Carries out one segment. `bytes` counts the written bytes, also if the segment fails in the
/// middle.
fn copy(
    task: &Task,
    targets: &[Option<Arc<LuNexus>>],
    segment: &Segment,
    bytes: &mut u64,
) -> Result<(), Ending> {
    let reach = |n: usize| match targets.get(n) {
        None => Err(copy_aborted(Asc::UNREACHABLE_COPY_TARGET)),
        Some(None) => Err(copy_aborted(Asc::COPY_TARGET_NOT_REACHABLE)),
        Some(Some(path)) => Ok(path),
    };
    let (source, destination) = (reach(segment.source)?, reach(segment.destination)?);
    let unit = if segment.of_destination { destination.lu.block_size() } else { source.lu.block_size() };
    let len = segment.blocks * unit;
    let place = |path: &LuNexus, lba: u64| {
        let size = path.lu.info().size;
        let offset = lba.checked_mul(path.lu.block_size());
        let fits = |&o: &u64| o.checked_add(len).is_some_and(|end| end <= size);
        match offset.filter(fits) {
            Some(offset) if len % path.lu.block_size() == 0 => Ok(offset),
            _ => Err(copy_aborted(Asc::NONE)),
        }
    };
    let (from, to) = (place(source, segment.from)?, place(destination, segment.to)?);
    let fences = destination.fences();
    let allowed = || may(source, Want::Read).and_then(|()| may(destination, Want::Write));
    allowed()?;
    let mut done = 0;
    while done < len {
        task.go_on()?;
        allowed()?; // it may take long, and the session that a logical unit is reached by may end meanwhile
        let n = (len - done).min(STEP);
        let mut buf = vec![0; n as usize];
        source.lu.read(from + done, &mut buf).map_err(|e| failed(&e, During::Read))?;
        let mut ops = [WriteOp::new(to + done, Bytes::from(buf))];
        destination.lu.write_unless(&mut ops, false, |_| {
            task.is_late() || destination.is_gone() || destination.fences() != fences
        });
        let [op] = ops;
        op.result.map_err(|e| failed(&e, During::Write))?;
        done += n;
        *bytes += n;
    }
    Ok(())
}

/// Returns the error of the command for a failure of the source or the destination.
fn failed(error: &hindcast_engine::Error, during: During) -> Ending {
    let sense = sense::of_error(error, during);
    match sense.key {
        // The initiator gets the sense data of missing space or write protection unchanged, because
        // it acts on these errors.
        SenseKey::DataProtect => sense.into(),
        _ => copy_aborted(Asc::THIRD_PARTY_DEVICE_FAILURE).into(),
    }
}

/// Checks that the initiator may read or write a logical unit of the copy.
fn may(path: &LuNexus, want: Want) -> Result<(), Ending> {
    let gates = path.lu.gates();
    let protected = path.read_only.load(Ordering::Acquire)
        || path.lu.info().read_only
        || gates & gate::SOFT_PROTECTED != 0;
    if want == Want::Write && protected {
        return Err(Sense::new(SenseKey::DataProtect, Asc::WRITE_PROTECTED).into());
    }
    let free = !path.is_gone() && gates & (gate::STOPPED | gate::SANITIZE) == 0 && path.allowed(want);
    if free { Ok(()) } else { Err(copy_aborted(Asc::COPY_TARGET_NOT_REACHABLE).into()) }
}

/// Carries out RECEIVE COPY STATUS(LID1).
pub(crate) fn status(task: &Task, _: &Bytes) -> Reply {
    found(task, |record| {
        let mut data = vec![0, 0, 0, 8, if record.sense.is_some() { 2 } else { 1 }];
        data.extend(record.segments.to_be_bytes());
        data.push(1); // KiB
        data.extend(u32::try_from(record.bytes >> 10).unwrap_or(u32::MAX).to_be_bytes());
        data
    })
}

/// Carries out RECEIVE COPY FAILURE DETAILS(LID1).
pub(crate) fn failed_segment_details(task: &Task, _: &Bytes) -> Reply {
    found(task, |record| {
        let sense = record.sense.as_ref().map(Sense::to_bytes).unwrap_or_default();
        let mut data = vec![0; 60];
        data[56] = if record.sense.is_some() { 0x02 } else { 0x00 };
        data[58..60].copy_from_slice(&u16::try_from(sense.len()).unwrap_or(0).to_be_bytes());
        data.extend(sense);
        let len = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
        data[..4].copy_from_slice(&len.to_be_bytes());
        data
    })
}

fn found(task: &Task, answer: impl FnOnce(&Record) -> Vec<u8>) -> Reply {
    let records = task.lu().copies.lock();
    let id = task.cdb.u8(2);
    let record = records.iter().find(|r| r.list_id == id && r.initiator == task.path.initiator);
    record.map(answer).ok_or_else(|| Sense::cdb_field(2).into())
}

/// Carries out RECEIVE COPY OPERATING PARAMETERS (SPC-4 6.27).
pub(crate) fn operating_parameters(task: &Task, _: &Bytes) -> Reply {
    let mut data = vec![0; 44];
    data[8..10].copy_from_slice(&(MAX_DESCRIPTORS as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(MAX_DESCRIPTORS as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(MAX_LIST as u32).to_be_bytes());
    let longest = u32::try_from(0xffff * task.lu().block_size()).unwrap_or(u32::MAX);
    data[16..20].copy_from_slice(&longest.to_be_bytes());
    data[34..36].copy_from_slice(&0xffffu16.to_be_bytes());
    data[36] = 0xff;
    data[37] = task.lu().block_size().trailing_zeros() as u8;
    data[43] = DESCRIPTOR_TYPES.len() as u8;
    data.extend(DESCRIPTOR_TYPES);
    let len = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
    data[..4].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}
