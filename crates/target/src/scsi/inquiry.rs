//! INQUIRY with its vital product data (SPC-4 6.4, 7.8; SBC-3 6.6), REPORT LUNS and REQUEST SENSE.

use super::cdb::Cdb;
use super::identity::{VENDOR, naa, padded, vendor_specific};
use super::lu::{LogicalUnit, THRESHOLD_EXPONENT};
use super::opcodes::{MAX_TRANSFER_BYTES, Table, Task};
use super::outcome::Reply;
use super::ports::lun_to_wire;
use super::sense::{Asc, Sense, SenseKey};
use super::target::Nexus;
use super::{alua, copy, provisioning, verify};
use bytes::Bytes;

/// OPTIMAL TRANSFER LENGTH in bytes.
const OPTIMAL_TRANSFER_BYTES: u64 = 1 << 20;
/// VERSION DESCRIPTORs of SAM-5, iSCSI, SPC-4 and SBC-3. They claim no revision (SPC-4 annex F.8).
const VERSIONS: [u16; 4] = [0x00a0, 0x0960, 0x0460, 0x04c0];
/// Codes of the supported vital product data pages.
const PAGES: [u8; 7] = [0x00, 0x80, 0x83, 0x8f, 0xb0, 0xb1, 0xb2];

/// Returns the standard INQUIRY data of a logical unit that does not exist.
pub(crate) fn absent() -> Vec<u8> {
    let mut data = vec![0; 96];
    data[0] = 0x7f;
    data[2] = 6; // SPC-4
    data[3] = 0x12; // HISUP, the response data format
    data[4] = 91;
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(VENDOR);
    data[16..36].fill(b' ');
    for (field, version) in data[58..].chunks_exact_mut(2).zip(VERSIONS) {
        field.copy_from_slice(&version.to_be_bytes());
    }
    data
}

/// Carries out INQUIRY.
pub(crate) fn inquiry(task: &Task, _: &Bytes) -> Reply {
    let page = task.cdb.u8(2);
    let lu = task.lu();
    if !task.cdb.bit(1, 0) {
        return if page == 0 { Ok(standard(lu)) } else { Err(Sense::cdb_field(2).into()) };
    }
    let body = match page {
        0x00 => PAGES.to_vec(),
        0x80 => lu.serial().into_bytes(),
        0x83 => identification(task),
        0x8f => third_party_copy(lu, task.table),
        0xb0 => block_limits(lu),
        0xb1 => characteristics(),
        0xb2 => logical_block_provisioning(lu),
        _ => return Err(Sense::cdb_field(2).into()),
    };
    let mut data = vec![0x00, page];
    data.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    data.extend(body);
    Ok(data)
}

/// Returns the standard INQUIRY data (SPC-4 6.4.2).
fn standard(lu: &LogicalUnit) -> Vec<u8> {
    let mut data = absent();
    data[0] = 0x00;
    data[5] = 0x18; // TPGS: implicit; 3PC
    data[6] = 0x10; // MULTIP
    data[16..32].copy_from_slice(&padded(&lu.options.product, 16));
    data[32..36].copy_from_slice(&padded(&lu.options.revision, 4));
    data
}

/// Returns a designation descriptor (SPC-4 7.8.6.1).
fn designation(code_set: u8, kind: u8, designator: &[u8]) -> Vec<u8> {
    let len = u8::try_from(designator.len()).unwrap_or(u8::MAX);
    let mut descriptor = vec![0x50 | code_set, kind, 0, len]; // the protocol is iSCSI
    if kind & 0x30 == 0 {
        descriptor[0] = code_set;
    } else {
        descriptor[1] |= 0x80; // PIV
    }
    descriptor.extend(&designator[..usize::from(len)]);
    descriptor
}

/// Returns a SCSI name string: UTF-8 with a NUL at its end, padded to a multiple of four bytes.
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(248);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the device identification page (SPC-4 7.8.6). It designates the logical unit, the port
/// that received the command, and the target.
fn identification(task: &Task) -> Vec<u8> {
    let port = &task.path.port;
    let number = |n: u16| [[0, 0], n.to_be_bytes()].concat();
    let mut data = designation(1, 0x03, &naa(task.lu()));
    data.extend(designation(2, 0x01, &vendor_specific(task.lu())));
    data.extend(designation(1, 0x14, &number(port.relative_id)));
    data.extend(designation(1, 0x15, &number(alua::group_of(task))));
    data.extend(designation(3, 0x18, &name_string(&port.name())));
    data.extend(designation(3, 0x28, &name_string(&port.target)));
    data
}

/// Returns the third-party copy page (SPC-4 7.8.14): the commands, limits, descriptor types and
/// general abilities of copies.
fn third_party_copy(lu: &LogicalUnit, table: &Table) -> Vec<u8> {
    let descriptor = |kind: u16, body: &[u8]| {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), &body].concat()
    };
    let mut commands = Vec::new();
    for code in [0x83, 0x84] {
        let actions: Vec<u8> =
            table.all_of(code).iter().filter_map(|op| op.service_action).map(|a| a as u8).collect();
        commands.extend([code, actions.len() as u8]);
        commands.extend(actions);
    }
    commands.insert(0, commands.len() as u8);
    // Four bytes precede the list in its descriptor. The padding makes the length of the whole
    // descriptor a multiple of four.
    let mut data = descriptor(0x0001, &commands);
    let max = (copy::MAX_DESCRIPTORS as u16).to_be_bytes();
    let mut parameters = vec![0; 28];
    parameters[4..6].copy_from_slice(&max);
    parameters[6..8].copy_from_slice(&max);
    parameters[8..12].copy_from_slice(&(copy::MAX_LIST as u32).to_be_bytes());
    data.extend(descriptor(0x0004, &parameters));
    let types = copy::DESCRIPTOR_TYPES;
    data.extend(descriptor(0x0008, &[types.len() as u8, types[0], types[1]]));
    let mut general = vec![0; 32];
    general[..4].copy_from_slice(&0xffffu32.to_be_bytes());
    general[4..8].copy_from_slice(&0xffu32.to_be_bytes());
    let longest = u32::try_from(0xffff * lu.block_size()).unwrap_or(u32::MAX);
    general[8..12].copy_from_slice(&longest.to_be_bytes());
    general[12] = lu.block_size().trailing_zeros() as u8;
    data.extend(descriptor(0x8001, &general));
    data
}

/// Returns the block limits page (SBC-3 6.6.4). A zero means that there is no limit.
fn block_limits(lu: &LogicalUnit) -> Vec<u8> {
    let blocks = |bytes: u64| u32::try_from(bytes / lu.block_size()).unwrap_or(u32::MAX).to_be_bytes();
    let granularity = u64::from(lu.info().preferred_size);
    let mut data = vec![0; 60];
    data[0] = 0x01; // WSNZ
    data[1] = verify::max_compare_and_write(lu.info().block_size);
    data[2..4].copy_from_slice(&blocks(granularity.min(1 << 20))[2..]);
    data[4..8].copy_from_slice(&blocks(MAX_TRANSFER_BYTES));
    data[8..12].copy_from_slice(&blocks(OPTIMAL_TRANSFER_BYTES));
    data[16..20].copy_from_slice(&[0xff; 4]); // UNMAP of any length
    data[20..24].copy_from_slice(&(provisioning::MAX_UNMAP_DESCRIPTORS as u32).to_be_bytes());
    data[24..28].copy_from_slice(&blocks(granularity));
    data[28] = 0x80; // UGAVALID; the alignment is 0
    data[40..44].copy_from_slice(&blocks(lu.atomic_bytes()));
    data
}

/// Returns the block device characteristics page (SBC-3 6.6.3). The medium does not rotate. Blocks
/// stay readable after BLOCK ERASE.
fn characteristics() -> Vec<u8> {
    let mut data = vec![0; 60];
    data[1] = 0x01;
    data[3] = 0x40; // WABEREQ 01b
    data[4] = 0x02; // FUAB: SYNCHRONIZE CACHE and FUA mean the same medium
    data
}

/// Returns the logical block provisioning page (SBC-3 6.6.6). The logical unit is thin. UNMAP and
/// both WRITE SAME commands unmap blocks. Unmapped blocks read as zeros.
fn logical_block_provisioning(lu: &LogicalUnit) -> Vec<u8> {
    let exponent = if lu.options.space.is_some() { THRESHOLD_EXPONENT } else { 0 };
    vec![exponent, 0xe4, 0x02, 0]
}

/// Returns the parameter data of REPORT LUNS (SPC-4 6.33).
pub(crate) fn luns_of(nexus: &Nexus, cdb: &Cdb) -> Result<Vec<u8>, Sense> {
    let luns = match cdb.u8(2) {
        0x00 | 0x02 => {
            nexus.luns_are_reported();
            nexus.luns()
        }
        0x01 => Vec::new(), // there are no well-known logical units
        _ => return Err(Sense::cdb_field(2)),
    };
    let len = u32::try_from(luns.len() * 8).unwrap_or(u32::MAX);
    let mut data = len.to_be_bytes().to_vec();
    data.extend([0; 4]);
    for lun in luns {
        data.extend(lun_to_wire(lun).to_be_bytes());
    }
    Ok(data)
}

/// Carries out REPORT LUNS.
pub(crate) fn report_luns(task: &Task, _: &Bytes) -> Reply {
    // The unit attention is removed before the inventory is read. Therefore a later change is
    // reported again.
    task.path.forget_attention(Asc::REPORTED_LUNS_DATA_CHANGED);
    Ok(luns_of(&task.nexus, &task.cdb)?)
}

/// Carries out REQUEST SENSE (SPC-4 6.39). It returns a pending unit attention, the state of a
/// sanitize operation, or NO SENSE.
pub(crate) fn request_sense(task: &Task, _: &Bytes) -> Reply {
    let nothing = || Sense::new(SenseKey::NoSense, Asc::NONE);
    let mut sense = task.path.take_attention().or_else(|| task.lu().sanitize.sense()).unwrap_or_else(nothing);
    sense.descriptor_format = task.cdb.bit(1, 0);
    Ok(sense.to_bytes())
}
