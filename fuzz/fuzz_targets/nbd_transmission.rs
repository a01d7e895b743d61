//! A whole session: whatever a client sends after the handshake, every request gets exactly one
//! well-formed answer, and neither the pieces in which it arrives nor the threads that serve it
//! show.
#![no_main]

use hindcast_engine::device::DeviceInfo;
use hindcast_fuzz::after_option_reply;
use hindcast_fuzz::mem::{MemDevice, MemExports};
use hindcast_fuzz::script::{Script, handshake, requests_in, take_reply};
use hindcast_target::nbd::codec::Command;
use hindcast_target::nbd::{NbdConfig, WorkerPool, serve_transport};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else {
        return;
    };
    let (structured, read_only, cold) = (mode & 1 != 0, mode & 2 != 0, mode & 4 != 0);
    let block_size = if mode & 8 != 0 { 4096 } else { 512 };
    let piece = [usize::MAX, 1, 29, 600][usize::from(mode >> 4) % 4];

    let info = DeviceInfo { size: SIZE, block_size, preferred_size: 4096, read_only, uuid: uuid::Uuid::nil() };
    let device = Arc::new(MemDevice::with_info(info));
    device.cold.store(cold, Ordering::Relaxed);
    let exports = MemExports::one("vol", device);
    let pieces = bytes.chunks(piece.min(bytes.len().max(1))).map(<[u8]>::to_vec);
    let script = Script::new([handshake("vol", structured)].into_iter().chain(pieces));
    // It ends in order or by an error; both are fine.
    let _ = serve_transport(&NbdConfig::default(), &*exports, WorkerPool::inline(), script.clone());

    let output = script.output.lock();
    let mut rest = &output[18..];
    while let Some(after) = after_option_reply(rest) {
        rest = after;
    }
    let requests = requests_in(bytes, 64 << 20);
    // Cookies that are used twice make simple replies ambiguous; a client must not do that.
    let cookies: BTreeSet<u64> = requests.iter().map(|r| r.cookie).collect();
    if cookies.len() < requests.len() {
        return;
    }
    let reads: BTreeMap<u64, (u64, u32)> = requests
        .iter()
        .filter(|r| !structured && Command::from_wire(r.kind) == Some(Command::Read))
        .map(|r| (r.cookie, (r.offset, r.length)))
        .collect();
    let mut answers = BTreeMap::new();
    while take_reply(&mut rest, &reads, &mut answers) {}
    assert!(rest.is_empty(), "half a reply");
    let answered = requests.iter().filter(|r| !(r.kind == Command::Disc as u16 && r.flags & !1 == 0));
    assert!(answered.map(|r| r.cookie).eq_set(answers.keys().copied()), "one answer each");
    for req in &requests {
        if let Some(answer) = answers.get(&req.cookie) {
            assert!(answer.done);
            if req.kind == Command::Read as u16 && answer.error == 0 {
                answer.read(req.offset, req.length as usize);
            }
        }
    }
});

/// Compares as sets.
trait EqSet: Iterator<Item = u64> + Sized {
    fn eq_set(self, other: impl Iterator<Item = u64>) -> bool {
        self.collect::<BTreeSet<u64>>() == other.collect::<BTreeSet<u64>>()
    }
}

impl<I: Iterator<Item = u64>> EqSet for I {}
