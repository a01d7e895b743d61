//! INQUIRY with its vital product data (SPC-4 6.4, 7.8; SBC-3 6.6), and the other commands by which a logical unit
//! says what it is.

use super::command::{Reply, Task};
use super::lu::LogicalUnit;
use super::sense::Sense;
use super::target;
use bytes::Bytes;

/// MAXIMUM TRANSFER LENGTH in bytes.
pub(crate) const MAX_TRANSFER_BYTES: u64 = 32 << 20;
/// T10 VENDOR IDENTIFICATION.
const VENDOR: &[u8; 8] = b"HINDCAST";

/// ASCII in a field of fixed length, padded with spaces.
fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        text.bytes().map(|b| if (0x20..0x7f).contains(&b) { b } else { b'?' }).take(len).collect();
    bytes.resize(len, b' ');
    bytes
}

/// Standard INQUIRY data of a logical unit that is not there.
pub(crate) fn absent() -> Vec<u8> {
    let mut data = vec![0; 36];
    data[0] = 0x7f;
    data[2] = 6;
    data[3] = 2;
    data[4] = 31;
    data[8..16].copy_from_slice(VENDOR);
    data[16..36].fill(b' ');
    data
}

/// INQUIRY.
pub(crate) fn inquiry(task: &Task, _: &Bytes) -> Reply {
    let page = task.cdb.u8(2);
    if !task.cdb.bit(1, 0) {
        return if page == 0 { Ok(standard(task.lu())) } else { Err(Sense::cdb_field(2).into()) };
    }
    let body = match page {
        0x00 => vec![0x00, 0x80],
        0x80 => serial(task.lu()).into_bytes(),
        _ => return Err(Sense::cdb_field(2).into()),
    };
    let mut data = vec![0x00, page];
    data.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    data.extend(body);
    Ok(data)
}

/// SPC-4 6.4.2.
fn standard(lu: &LogicalUnit) -> Vec<u8> {
    let mut data = absent();
    data[0] = 0x00;
    data[7] = 0x02; // CMDQUE
    data[16..32].copy_from_slice(&padded(&lu.options.product, 16));
    data[32..36].copy_from_slice(&padded(&lu.options.revision, 4));
    data
}

/// The unit serial number.
fn serial(lu: &LogicalUnit) -> String {
    match &lu.options.serial {
        Some(serial) => serial.clone(),
        None => lu.info().uuid.iter().map(|b| format!("{b:02x}")).collect(),
    }
}

/// REPORT LUNS.
pub(crate) fn report_luns(task: &Task, _: &Bytes) -> Reply {
    let data = target::report_luns(&task.nexus, &task.cdb)?;
    task.path.forget_attention(super::Asc::REPORTED_LUNS_DATA_CHANGED);
    Ok(data)
}

/// REQUEST SENSE (SPC-4 6.39): a pending unit attention, or nothing.
pub(crate) fn request_sense(task: &Task, _: &Bytes) -> Reply {
    let mut sense = task.path.take_attention().unwrap_or(target::NO_SENSE);
    sense.descriptor_format = task.cdb.bit(1, 0);
    Ok(sense.to_bytes())
}
