//! A target with one logical unit in memory and two initiators. A test runs a command in one call.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

use super::mem::MemDevice;
use bytes::Bytes;
use hindcast_engine::device::{BlockDevice, DeviceInfo, WriteOp};
use hindcast_target::scsi::*;
use parking_lot::Mutex;
use std::sync::Arc;
use uuid::Uuid;

pub const IQN: &str = "iqn.2026-11.io.hindcast:test";
pub const BLOCK: usize = 512;

/// Keeps a logical unit's state in memory, and fails when told to.
#[derive(Default)]
pub struct Store {
    pub state: Mutex<Option<Vec<u8>>>,
    pub broken: Mutex<bool>,
}

impl LuStore for Store {
    fn load(&self) -> hindcast_engine::Result<Option<Vec<u8>>> {
        Ok(self.state.lock().clone())
    }

    fn save(&self, state: &[u8]) -> hindcast_engine::Result<()> {
        if *self.broken.lock() {
            return Err(hindcast_engine::Error::new(hindcast_engine::ErrorKind::Io, "fail as told"));
        }
        *self.state.lock() = Some(state.to_vec());
        Ok(())
    }
}

/// What a session was told.
#[derive(Default)]
pub struct Told(pub Mutex<Vec<Event>>);

impl NexusEvents for Told {}

impl Events for Told {
    fn event(&self, event: Event) -> usize {
        self.0.lock().push(event);
        1
    }
}

pub struct Rig {
    pub device: Arc<MemDevice>,
    pub store: Arc<Store>,
    pub lu: Arc<LogicalUnit>,
    pub target: Arc<Target>,
    pub a: Arc<Nexus>,
    pub b: Arc<Nexus>,
    pub told: [Arc<Told>; 2],
}

pub fn port_name(n: u64) -> String {
    format!("iqn.2026-11.com.example:{n},i,0x{n:012x}")
}

pub fn info(size: u64) -> DeviceInfo {
    DeviceInfo {
        size,
        block_size: 512,
        preferred_size: 4096,
        read_only: false,
        uuid: Uuid::from_bytes(*b"0123456789abcdef"),
    }
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(info(4 << 20), LuOptions { atomic_bytes: 128 << 10, ..LuOptions::default() })
    }

    pub fn with(info: DeviceInfo, options: LuOptions) -> Rig {
        let device = Arc::new(MemDevice::with_info(info));
        Rig::over(device, options, Arc::default())
    }

    /// A rig as after a start of the server: initiators that were logged in have to log in again.
    pub fn over(device: Arc<MemDevice>, options: LuOptions, store: Arc<Store>) -> Rig {
        let lu = LogicalUnit::new(device.clone(), options, Some(store.clone())).unwrap();
        let target = Target::new(IQN, &[1, 2]);
        target.set_lun(0, Some(lu.clone()));
        let told = [Arc::new(Told::default()), Arc::new(Told::default())];
        let attach = |n: u64, told: &Arc<Told>| {
            target.attach(&port_name(n), 1, Access::default(), told.clone()).unwrap()
        };
        let (a, b) = (attach(1, &told[0]), attach(2, &told[1]));
        let rig = Rig { device, store, lu, target, a, b, told };
        rig.settle();
        rig
    }

    /// Takes all unit attentions.
    pub fn settle(&self) {
        for nexus in [&self.a, &self.b] {
            while attention(nexus).is_some() {}
        }
    }
}

/// Takes one unit attention.
pub fn attention(nexus: &Arc<Nexus>) -> Option<Asc> {
    let sense = run(nexus, &[0, 0, 0, 0, 0, 0], &[]).sense?;
    (sense.key == SenseKey::UnitAttention).then_some(sense.asc)
}

/// Carries a command out at LUN 0, as a session would.
pub fn run(nexus: &Arc<Nexus>, cdb: &[u8], data: &[u8]) -> Outcome {
    run_at(nexus, 0, cdb, data)
}

pub fn run_at(nexus: &Arc<Nexus>, lun: u64, cdb: &[u8], data: &[u8]) -> Outcome {
    let command = nexus.start(lun, cdb, data.len() as u64);
    let (taken, given) = (command.data_out_len(), command.data_in_len());
    let data = Bytes::copy_from_slice(&data[..data.len().min(taken as usize)]);
    let outcome = match command {
        Command::Done(outcome) => outcome,
        Command::Read(read) => {
            let mut buf = vec![0; read.len as usize];
            match read.lu().read(read.offset, &mut buf) {
                Ok(()) => Outcome::data(buf),
                Err(e) => read.failed(&e),
            }
        }
        Command::Write(write) => {
            let whole = data.len() / BLOCK * BLOCK;
            let mut ops = [WriteOp::new(write.offset, data.slice(..whole))];
            if whole > 0 {
                write.lu().write(&mut ops, write.fua);
            }
            write.outcome(&ops[0].result)
        }
        Command::Other(task) => task.run(&data),
    };
    assert!(outcome.data_in.len() as u64 <= given, "more than was announced");
    assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition);
    outcome
}

/// The data of a command that has to work.
#[track_caller]
pub fn good(nexus: &Arc<Nexus>, cdb: &[u8], data: &[u8]) -> Bytes {
    let outcome = run(nexus, cdb, data);
    assert_eq!(outcome.status, Status::Good, "{cdb:02x?}: {:?}", outcome.sense);
    outcome.data_in
}

/// A command that has to fail with this.
#[track_caller]
pub fn bad(nexus: &Arc<Nexus>, cdb: &[u8], data: &[u8], key: SenseKey, asc: Asc) -> Sense {
    let sense = run(nexus, cdb, data).sense.unwrap_or_else(|| panic!("{cdb:02x?} worked"));
    assert_eq!((sense.key, sense.asc), (key, asc), "{cdb:02x?}");
    sense
}

/// INVALID FIELD IN CDB.
#[track_caller]
pub fn bad_field(nexus: &Arc<Nexus>, cdb: &[u8], data: &[u8]) {
    bad(nexus, cdb, data, SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB);
}

#[track_caller]
pub fn conflict(nexus: &Arc<Nexus>, cdb: &[u8], data: &[u8]) {
    assert_eq!(run(nexus, cdb, data).status, Status::ReservationConflict, "{cdb:02x?}");
}

/// A CDB of `len` bytes with a block address and a count in the places of its group.
pub fn blocks(code: u8, flags: u8, lba: u64, count: u64) -> Vec<u8> {
    let mut cdb = match code >> 5 {
        0 => vec![0; 6],
        1 | 2 => vec![0; 10],
        5 => vec![0; 12],
        _ => vec![0; 16],
    };
    cdb[0] = code;
    cdb[1] = flags;
    match cdb.len() {
        6 => {
            cdb[1] |= (lba >> 16) as u8;
            cdb[2..4].copy_from_slice(&(lba as u16).to_be_bytes());
            cdb[4] = count as u8;
        }
        10 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[7..9].copy_from_slice(&(count as u16).to_be_bytes());
        }
        12 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[6..10].copy_from_slice(&(count as u32).to_be_bytes());
        }
        _ => {
            cdb[2..10].copy_from_slice(&lba.to_be_bytes());
            cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
        }
    }
    cdb
}

/// What the device holds.
pub fn at(rig: &Rig, lba: usize, count: usize) -> Vec<u8> {
    let mut buf = vec![0; count * BLOCK];
    rig.device.read((lba * BLOCK) as u64, &mut buf).unwrap();
    buf
}
