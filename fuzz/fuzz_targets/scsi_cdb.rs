//! Commands: whatever CDBs come in whatever order, nothing panics, no answer is longer than
//! announced, and the device sees only requests that are in range and aligned.
#![no_main]

use bytes::Bytes;
use hindcast_engine::device::{DeviceInfo, WriteOp};
use hindcast_fuzz::{mem::MemDevice, two_initiators};
use hindcast_target::scsi::{Command, LuOptions, Space, Status, lun_to_wire};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

// The first byte chooses the device; then, for each command, a byte that chooses initiator, logical
// unit and how much data comes, and 16 bytes of CDB.
fuzz_target!(|data: &[u8]| {
    let Some((&mode, rest)) = data.split_first() else {
        return;
    };
    let block_size = if mode & 1 != 0 { 4096 } else { 512 };
    let info = DeviceInfo {
        size: 1 << 20,
        block_size,
        preferred_size: 4096,
        read_only: mode & 2 != 0,
        uuid: uuid::Uuid::from_bytes([3; 16]),
    };
    let device = Arc::new(MemDevice::with_info(info));
    let space: Option<Arc<dyn Fn() -> Space + Send + Sync>> =
        if mode & 4 != 0 { Some(Arc::new(|| Space { used: 1, available: 2 << 20 })) } else { None };
    let options = LuOptions { space, atomic_bytes: 16384, sanitize_rate: 1 << 40, ..LuOptions::default() };
    let Some([one, two]) = two_initiators(device, options, None) else {
        return;
    };
    for step in rest.chunks(17) {
        let nexus = if step[0] & 1 == 0 { &one } else { &two };
        let lun = if step[0] & 6 == 6 { lun_to_wire(1) } else { 0 };
        let short = step[0] & 8 != 0;
        // The length is known only once the command has begun; some insist on what is announced.
        let wanted = nexus.start(lun, &step[1..], 0).data_out_len();
        let command = nexus.start(lun, &step[1..], wanted);
        let (taken, given) = (command.data_out_len().min(1 << 20), command.data_in_len());
        let taken = if short { taken / 2 } else { taken };
        let data = Bytes::from(vec![step[0]; taken as usize]);
        let outcome = match command {
            Command::Done(outcome) => outcome,
            Command::Read(read) => {
                let mut buf = vec![0; read.len as usize];
                assert!(read.lu().try_read(read.offset, &mut buf).is_ok());
                continue;
            }
            Command::Write(write) => {
                let whole = data.len() - data.len() % block_size as usize;
                if whole > 0 {
                    write.lu().write(&mut [WriteOp::new(write.offset, data.slice(..whole))], write.fua);
                }
                continue;
            }
            Command::Other(task) => task.run(&data),
        };
        assert!(outcome.data_in.len() as u64 <= given);
        assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition);
        if let Some(sense) = outcome.sense {
            assert!((8..=252).contains(&sense.to_bytes().len()));
        }
    }
});
