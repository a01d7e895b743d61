//! Parameter lists: whatever comes with the commands that take one, nothing panics, and what is
//! refused changes nothing that a restart would find.
#![no_main]

use bytes::Bytes;
use hindcast_engine::device::DeviceInfo;
use hindcast_fuzz::{mem::MemDevice, two_initiators};
use hindcast_target::scsi::{Command, LogicalUnit, LuOptions, LuStore, Status};
use libfuzzer_sys::fuzz_target;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Default)]
struct Store(Mutex<Option<Vec<u8>>>);

impl LuStore for Store {
    fn load(&self) -> hindcast_engine::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, state: &[u8]) -> hindcast_engine::Result<()> {
        *self.0.lock() = Some(state.to_vec());
        Ok(())
    }
}

/// Operation code and byte 1, and the place and width of the parameter list length.
const COMMANDS: [(u8, u8, usize, usize, usize); 15] = [
    (0x15, 0x11, 6, 4, 1),
    (0x55, 0x11, 10, 7, 2),
    (0x42, 0x00, 10, 7, 2),
    (0x48, 0x01, 10, 7, 2),
    (0x4c, 0x00, 10, 7, 2),
    (0x5f, 0x00, 10, 5, 4),
    (0x5f, 0x01, 10, 5, 4),
    (0x5f, 0x02, 10, 5, 4),
    (0x5f, 0x03, 10, 5, 4),
    (0x5f, 0x04, 10, 5, 4),
    (0x5f, 0x05, 10, 5, 4),
    (0x5f, 0x06, 10, 5, 4),
    (0x5f, 0x07, 10, 5, 4),
    (0x83, 0x00, 16, 10, 4),
    (0x15, 0x10, 6, 4, 1),
];

// For each command: which, byte 2 of the CDB, the list's length, and the list.
fuzz_target!(|data: &[u8]| {
    let info =
        DeviceInfo { size: 1 << 18, block_size: 512, preferred_size: 4096, read_only: false, uuid: uuid::Uuid::from_bytes([3; 16]) };
    let device = Arc::new(MemDevice::with_info(info));
    let store = Arc::new(Store::default());
    let options = LuOptions { sanitize_rate: 1 << 40, ..LuOptions::default() };
    let Some([one, two]) = two_initiators(device.clone(), options.clone(), Some(store.clone())) else {
        return;
    };
    let mut rest = data;
    while let [which, byte2, len, more @ ..] = rest {
        let nexus = if which & 0x80 == 0 { &one } else { &two };
        let (code, byte1, size, at, width) = COMMANDS[usize::from(which & 0x7f) % COMMANDS.len()];
        let list = &more[..more.len().min(usize::from(*len))];
        rest = &more[list.len()..];
        let mut cdb = vec![0; size];
        (cdb[0], cdb[1], cdb[2]) = (code, byte1, if code == 0x5f { *byte2 } else { 0 });
        cdb[at..at + width].copy_from_slice(&(list.len() as u32).to_be_bytes()[4 - width..]);
        // A unit attention comes first.
        while let Command::Done(outcome) = nexus.start(0, &[0; 6], 0) {
            if outcome.status == Status::Good {
                break;
            }
        }
        let before = store.0.lock().clone();
        let outcome = match nexus.start(0, &cdb, list.len() as u64) {
            Command::Other(task) => task.run(&Bytes::copy_from_slice(list)),
            Command::Done(outcome) => outcome,
            Command::Read(_) | Command::Write(_) => unreachable!("none of these"),
        };
        if outcome.status != Status::Good {
            assert_eq!(*store.0.lock(), before, "refused, and yet something was kept");
        }
    }
    // What was kept can be read.
    let kept = LogicalUnit::new(device, options, Some(store));
    assert!(kept.is_ok(), "{:?}", kept.err());
});
