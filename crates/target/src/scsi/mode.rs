//! Mode parameters: MODE SENSE and MODE SELECT (SPC-4 6.11 to 6.14, 7.5; SBC-3 6.5).

use super::lu::{LogicalUnit, gate};
use super::medium::writing;
use super::opcodes::Task;
use super::outcome::Reply;
use super::sense::{Asc, Sense};
use super::state::Modes;
use bytes::Bytes;
use std::sync::atomic::Ordering;

/// The values of PAGE CONTROL: which values of a page MODE SENSE returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Current,
    Changeable,
    Default,
    Saved,
}

/// Page and subpage codes, in the order in which MODE SENSE returns them.
const PAGES: [(u8, u8); 6] = [(0x01, 0), (0x08, 0), (0x0a, 0), (0x0a, 1), (0x1c, 0), (0x1c, 2)];

/// Returns a mode page with its header. The length field counts the bytes after itself.
fn page(code: u8, subpage: u8, body: &[u8]) -> Vec<u8> {
    let mut page = match subpage {
        0 => vec![code, body.len() as u8],
        _ => vec![0x40 | code, subpage, 0, body.len() as u8],
    };
    page.extend(body);
    page
}

/// Returns the page `code` with the values of `modes`. Returns `None` if the page does not exist.
fn current(lu: &LogicalUnit, code: (u8, u8), modes: &Modes) -> Option<Vec<u8>> {
    let bit = |on: bool, bit: u8| u8::from(on) << bit;
    Some(match code {
        // Read-write error recovery (SBC-3 6.5.8).
        (0x01, 0) => page(0x01, 0, &[0; 10]),
        // Caching (SBC-3 6.5.6).
        (0x08, 0) => {
            let mut body = [0; 18];
            body[0] = bit(modes.write_cache, 2);
            page(0x08, 0, &body)
        }
        // Control (SPC-4 7.5.7): GLTSD, unrestricted reordering, no limit to BUSY.
        (0x0a, 0) => {
            let sense = 0x02 | bit(modes.descriptor_sense, 2);
            page(0x0a, 0, &[sense, 0x10, bit(modes.protected, 3), 0, 0, 0, 0xff, 0xff, 0, 0])
        }
        // Control extension (SPC-4 7.5.8): IALUAE, the longest sense data.
        (0x0a, 1) => {
            let mut body = [0; 28];
            body[0] = 0x01;
            body[2] = 252;
            page(0x0a, 1, &body)
        }
        // Informational exceptions control (SBC-3 6.5.7). DEXCPT is set, because the unit has no
        // part that wears out.
        (0x1c, 0) => page(0x1c, 0, &[0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // Logical block provisioning (SBC-3 6.5.9): one threshold, for decreasing available space.
        (0x1c, 2) => {
            lu.options.space.as_ref()?;
            let mut body = [0; 20];
            body[12] = bit(modes.threshold_enabled, 7) | 0x02;
            body[13] = 0x01;
            body[16..20].copy_from_slice(&modes.threshold.to_be_bytes());
            page(0x1c, 2, &body)
        }
        _ => return None,
    })
}

/// Returns a page with ones for the bits that can be changed, and zeros elsewhere. These bits
/// differ between two sets of modes that have all bits different.
fn changeable(lu: &LogicalUnit, code: (u8, u8)) -> Option<Vec<u8>> {
    let low = Modes { write_cache: false, ..Modes::default() };
    let high = Modes {
        write_cache: true,
        protected: true,
        descriptor_sense: true,
        threshold_enabled: true,
        threshold: u32::MAX,
    };
    let (low, mut mask) = (current(lu, code, &low)?, current(lu, code, &high)?);
    let header = if code.1 == 0 { 2 } else { 4 };
    mask.iter_mut().zip(&low).skip(header).for_each(|(a, b)| *a ^= b);
    Some(mask)
}

/// Sets modes from the values of a page.
fn apply(modes: &mut Modes, code: (u8, u8), page: &[u8]) {
    match code {
        (0x08, 0) => modes.write_cache = page[2] & 0x04 != 0,
        (0x0a, 0) => {
            modes.descriptor_sense = page[2] & 0x04 != 0;
            modes.protected = page[4] & 0x08 != 0;
        }
        (0x1c, 2) => {
            modes.threshold_enabled = page[16] & 0x80 != 0;
            modes.threshold = u32::from_be_bytes([page[20], page[21], page[22], page[23]]);
        }
        _ => {}
    }
}

/// Carries out MODE SENSE(6).
pub(crate) fn sense6(task: &Task, _: &Bytes) -> Reply {
    let mut data = vec![0; 4];
    data[2] = device_specific(task);
    if !task.cdb.bit(1, 3) {
        data[3] = 8;
        data.extend(short_descriptor(task.lu()));
    }
    pages(task, &mut data)?;
    // The length field has one byte, so its value is limited to 255.
    data[0] = u8::try_from(data.len() - 1).unwrap_or(u8::MAX);
    Ok(data)
}

/// Carries out MODE SENSE(10).
pub(crate) fn sense10(task: &Task, _: &Bytes) -> Reply {
    let long = task.cdb.bit(1, 4);
    let mut data = vec![0; 8];
    data[3] = device_specific(task);
    if !task.cdb.bit(1, 3) {
        if long {
            data[4] = 0x01;
            data[7] = 16;
            data.extend(long_descriptor(task.lu()));
        } else {
            data[7] = 8;
            data.extend(short_descriptor(task.lu()));
        }
    }
    pages(task, &mut data)?;
    let len = u16::try_from(data.len() - 2).unwrap_or(u16::MAX);
    data[..2].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}

/// Returns the device-specific parameter: WP and DPOFUA.
fn device_specific(task: &Task) -> u8 {
    let protected = task.path.read_only.load(Ordering::Acquire)
        || task.lu().info().read_only
        || task.lu().gates() & gate::SOFT_PROTECTED != 0;
    0x10 | u8::from(protected) << 7
}

/// Returns the short LBA mode parameter block descriptor (SBC-3 6.5.2.2).
fn short_descriptor(lu: &LogicalUnit) -> [u8; 8] {
    let info = lu.info();
    let blocks = u32::try_from(info.size / u64::from(info.block_size)).unwrap_or(u32::MAX).to_be_bytes();
    let [_, a, b, c] = info.block_size.to_be_bytes();
    [blocks[0], blocks[1], blocks[2], blocks[3], 0, a, b, c]
}

/// Returns the long LBA mode parameter block descriptor (SBC-3 6.5.2.3).
fn long_descriptor(lu: &LogicalUnit) -> [u8; 16] {
    let info = lu.info();
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&(info.size / u64::from(info.block_size)).to_be_bytes());
    descriptor[12..].copy_from_slice(&info.block_size.to_be_bytes());
    descriptor
}

/// Appends the pages that the CDB selects.
fn pages(task: &Task, data: &mut Vec<u8>) -> Result<(), Sense> {
    let (code, subpage) = (task.cdb.u8(2) & 0x3f, task.cdb.u8(3));
    let lu = task.lu();
    let control = match task.cdb.u8(2) >> 6 {
        0 => Control::Current,
        1 => Control::Changeable,
        2 => Control::Default,
        _ => Control::Saved,
    };
    if control == Control::Saved && lu.store.is_none() {
        return Err(Sense::illegal(Asc::SAVING_PARAMETERS_NOT_SUPPORTED));
    }
    let modes = match control {
        Control::Saved => lu.saved_modes(),
        Control::Current => lu.modes.lock().clone(),
        Control::Default | Control::Changeable => Modes::default(),
    };
    let wanted = |&&(c, s): &&(u8, u8)| (code == 0x3f || c == code) && (subpage == 0xff || s == subpage);
    let mut found = false;
    for &which in PAGES.iter().filter(wanted) {
        let page = match control {
            Control::Changeable => changeable(lu, which),
            _ => current(lu, which, &modes),
        };
        let Some(mut page) = page else {
            continue;
        };
        found = true;
        if lu.store.is_some() && control != Control::Changeable {
            page[0] |= 0x80; // PS
        }
        data.extend(page);
    }
    if found {
        return Ok(());
    }
    let known = code == 0x3f || PAGES.iter().any(|&(c, _)| c == code);
    Err(Sense::cdb_field(if known { 3 } else { 2 }))
}

/// Carries out MODE SELECT(6).
pub(crate) fn select6(task: &Task, list: &Bytes) -> Reply {
    let descriptors = |header: &[u8]| usize::from(header[3]);
    select(task, list, 4, descriptors)
}

/// Carries out MODE SELECT(10).
pub(crate) fn select10(task: &Task, list: &Bytes) -> Reply {
    let descriptors = |header: &[u8]| usize::from(u16::from_be_bytes([header[6], header[7]]));
    select(task, list, 8, descriptors)
}

/// Carries out MODE SELECT. It checks the whole list before it applies any page.
fn select(task: &Task, list: &Bytes, header: usize, descriptors: impl Fn(&[u8]) -> usize) -> Reply {
    let lu = task.lu();
    let (format, save) = (task.cdb.bit(1, 4), task.cdb.bit(1, 0));
    if save && lu.store.is_none() {
        return Err(Sense::cdb_bit(1, 0).into());
    }
    if task.data_out_len() == 0 {
        return Ok(Vec::new());
    }
    if !format {
        return Err(Sense::cdb_bit(1, 4).into());
    }
    let length_error = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    if list.len() < header || (list.len() as u64) < task.data_out_len() {
        return Err(length_error.into());
    }
    let long = header == 8 && list[4] & 1 != 0;
    let described = descriptors(&list[..header]);
    let pages = list.get(header + described..).ok_or(length_error)?;
    check_descriptor(lu, &list[header..header + described], long, header)?;
    let one_at_a_time = lu.changing.lock();
    let before = lu.modes.lock().clone();
    let changed = parse(lu, &before, pages, header + described)?;
    if save {
        lu.keep(|saved| saved.modes = Some(changed.clone())).map_err(writing)?;
    }
    if changed != before {
        let no_cache_now = before.write_cache && !changed.write_cache;
        lu.apply_modes(&changed);
        *lu.modes.lock() = changed;
        drop(one_at_a_time);
        lu.establish(Asc::MODE_PARAMETERS_CHANGED, |path| !std::ptr::eq(path, &*task.path));
        if no_cache_now {
            // An initiator has no reason to flush from now on. Therefore the writes that were
            // acknowledged from the cache must become durable now.
            lu.settle();
            lu.device().flush().map_err(writing)?;
        }
    }
    Ok(Vec::new())
}

/// Checks that a block descriptor contains the current values. It cannot change them.
fn check_descriptor(lu: &LogicalUnit, descriptor: &[u8], long: bool, at: usize) -> Result<(), Sense> {
    let bad = |n: usize| Err(Sense::parameter_field(at + n));
    let (short, full) = (short_descriptor(lu), long_descriptor(lu));
    let expected: &[u8] = if long { &full } else { &short };
    if descriptor.is_empty() {
        return Ok(());
    }
    if descriptor.len() != expected.len() {
        return Err(Sense::parameter_field(at - 1));
    }
    let split = if long { 8 } else { 4 };
    let (blocks, rest) = descriptor.split_at(split);
    let any = blocks.iter().all(|&b| b == 0) || blocks.iter().all(|&b| b == 0xff);
    if !any && *blocks != expected[..split] {
        return bad(0);
    }
    if rest != &expected[split..] { bad(split) } else { Ok(()) }
}

/// Returns the modes after the changes of a list of pages.
fn parse(lu: &LogicalUnit, modes: &Modes, pages: &[u8], mut at: usize) -> Result<Modes, Sense> {
    let mut changed = modes.clone();
    let mut rest = pages;
    while let Some(&first) = rest.first() {
        let subpage = if first & 0x40 != 0 { rest.get(1).copied().unwrap_or(0) } else { 0 };
        let code = (first & 0x3f, subpage);
        let (Some(now), Some(mask)) = (current(lu, code, modes), changeable(lu, code)) else {
            return Err(Sense::parameter_field(at));
        };
        let header = if first & 0x40 != 0 { 4 } else { 2 };
        if header == 4 && subpage == 0 {
            return Err(Sense::parameter_field(at));
        }
        let Some(page) = rest.get(..now.len()) else {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
        };
        if page[1..header] != now[1..header] {
            return Err(Sense::parameter_field(at + 1));
        }
        let fixed = (header..now.len()).find(|&n| (page[n] ^ now[n]) & !mask[n] != 0);
        if let Some(n) = fixed {
            return Err(Sense::parameter_field(at + n));
        }
        apply(&mut changed, code, page);
        rest = &rest[now.len()..];
        at += now.len();
    }
    Ok(changed)
}
