//! Random commands and parameter lists that are nearly valid. Whatever is changed in them, nothing
//! panics, no answer is longer than announced, the device gets only accesses that are in range, and
//! what was stored can be read again.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

#[path = "common/mem.rs"]
mod mem;
#[path = "common/scsi.rs"]
mod scsi;

use hindcast_engine::world::{Rng, SplitMix};
use hindcast_target::scsi::*;
use scsi::*;

/// Good commands with their parameter lists, to be spoilt.
fn good_commands() -> Vec<(Vec<u8>, Vec<u8>)> {
    let id = [&[0x45, 0, 0, 48][..], port_name(2).as_bytes(), &[0; 48]].concat()[..52].to_vec();
    let register = |action: u8, flags: u8, more: &[u8]| {
        let mut list = vec![0; 24];
        list[15] = 5;
        list[20] = flags;
        list.extend(more);
        (vec![0x5f, action, 3, 0, 0, 0, 0, 0, list.len() as u8, 0], list)
    };
    let mut designator = vec![0xe4, 0, 0, 0, 1, 3, 0, 8];
    designator.resize(32, 0);
    designator[30] = 2;
    let mut segment = vec![2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 9];
    segment.resize(28, 1);
    let mut copy = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    copy.extend(designator);
    copy.extend(segment);
    let mut caching = vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0, 0x08, 0x12];
    caching.resize(32, 0);
    let control = vec![0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x0a, 2, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
    vec![
        (vec![0x15, 0x11, 0, 0, caching.len() as u8, 0], caching),
        (vec![0x55, 0x11, 0, 0, 0, 0, 0, 0, control.len() as u8, 0], control),
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], [&[0, 22, 0, 16][..], &[0; 15], &[1, 0, 0, 0, 0]].concat()),
        (vec![0x48, 1, 0, 0, 0, 0, 0, 0, 6, 0], vec![1, 0, 0, 2, 3, 4]),
        (vec![0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),
        register(0, 1, &[]),
        register(0, 8, &[&[0, 0, 0, 52][..], &id].concat()),
        register(6, 4, &[]),
        register(1, 0, &[]),
        register(2, 0, &[]),
        register(3, 0, &[]),
        register(5, 0, &[]),
        register(7, 0, &id),
        (vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, copy.len() as u8, 0, 0], copy),
        (blocks(0x89, 0, 4, 0), vec![0; 2 * BLOCK]),
        (blocks(0x93, 8, 4, 9), vec![0; BLOCK]),
        (blocks(0x8f, 2, 4, 2), vec![0; 2 * BLOCK]),
        (blocks(0x8b, 0, 4, 2), vec![0xff; 2 * BLOCK]),
        (blocks(0x2a, 0, 4, 2), vec![1; 2 * BLOCK]),
        (blocks(0x28, 0, 4, 2), vec![]),
        (blocks(0x9e, 0x12, 4, 99), vec![]),
        (vec![0x5e, 3, 0, 0, 0, 0, 0, 0, 99, 0], vec![]),
        (vec![0x12, 1, 0x83, 0, 99, 0], vec![]),
        (vec![0x5a, 0, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], vec![]),
        (vec![0x1b, 0, 0, 0, 1, 0], vec![]),
        (vec![0x16, 0, 0, 0, 0, 0], vec![]),
        (vec![0x17, 0, 0, 0, 0, 0], vec![]),
    ]
}

#[test]
fn nearly_right_commands_do_no_harm() {
    let options = || LuOptions { sanitize_rate: 1 << 40, atomic_bytes: 4096, ..LuOptions::default() };
    let rig = Rig::with(info(1 << 18), options());
    let commands = good_commands();
    let random = SplitMix::new(20261121);
    let below = |n: usize| (random.next() % n as u64) as usize;
    let mut done = 0;
    for _ in 0..100_000 {
        let (mut cdb, mut list) = commands[below(commands.len())].clone();
        for _ in 0..below(3) {
            let at = below(cdb.len());
            cdb[at] ^= 1 << below(8);
        }
        if cdb[0] == 0x48 {
            cdb[1] &= 0x7f; // not aside: its end would be kept in the middle of another command
        }
        for _ in 0..below(4) {
            if !list.is_empty() {
                let at = below(list.len());
                list[at] = if below(2) == 0 { random.next() as u8 } else { list[at] ^ (1 << below(8)) };
            }
        }
        if below(8) == 0 {
            list.truncate(below(list.len() + 1));
        }
        let nexus = if below(2) == 0 { &rig.a } else { &rig.b };
        let before = rig.store.state.lock().clone();
        // `run` checks what every outcome has to be, the device what every request has to be.
        match run(nexus, &cdb, &list).status {
            Status::Good => done += 1,
            _ => {
                assert_eq!(*rig.store.state.lock(), before, "refused, and yet something was kept: {cdb:02x?}")
            }
        }
    }
    assert!(done > 1000, "only {done} were carried out");
    Rig::over(rig.device.clone(), options(), rig.store.clone());
}
