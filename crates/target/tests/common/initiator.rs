//! An initiator that sends whatever a test asks it to send, and a target for it to talk to.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

use super::mem::MemDevice;
use hindcast_target::iscsi::pdu::{Bhs, Digests, FINAL, NO_TAG, digest, opcode};
use hindcast_target::iscsi::{
    AuthPolicy, Denied, Grant, Initiator, IscsiConfig, IscsiServer, Portal, TargetEntry, Targets,
};
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions, Target};
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub const TARGET: &str = "iqn.2026-11.io.hindcast:vol";
pub const NAME: &str = "iqn.2026-11.com.example:host";
pub const SIZE: u64 = 8 << 20;
pub const BLOCK: usize = 512;

/// One target, `TARGET`, with two logical units; and what the daemon decides.
pub struct Daemon {
    pub target: Arc<Target>,
    pub auth: Mutex<AuthPolicy>,
    pub denied: Mutex<Option<Denied>>,
    /// As many targets are open as may be.
    pub full: Mutex<bool>,
    /// How often the target was opened.
    pub opened: Mutex<u32>,
    pub access: Mutex<Access>,
    /// More names to show to SendTargets.
    pub shown: Mutex<Vec<String>>,
}

impl Targets for Daemon {
    fn list(&self, _: &Initiator<'_>) -> Vec<TargetEntry> {
        let entry = |name: &str| TargetEntry { name: name.into(), portal_groups: Vec::new() };
        let shown = self.shown.lock();
        [TARGET].into_iter().chain(shown.iter().map(String::as_str)).map(entry).collect()
    }

    fn discovery_auth(&self, _: &Initiator<'_>) -> AuthPolicy {
        self.auth.lock().clone()
    }

    fn login(&self, target: &str, _: &Initiator<'_>) -> Result<Grant, Denied> {
        if let Some(denied) = *self.denied.lock() {
            return Err(denied);
        }
        if target != TARGET && target != "vol" {
            return Err(Denied::NotFound);
        }
        let (access, auth) = (self.access.lock().clone(), self.auth.lock().clone());
        Ok(Grant { name: TARGET.into(), access, auth, alias: Some("a volume".into()) })
    }

    fn open(&self, _: &Grant) -> Result<Arc<Target>, Denied> {
        *self.opened.lock() += 1;
        if *self.full.lock() { Err(Denied::TooMany) } else { Ok(self.target.clone()) }
    }
}

pub struct Fixture {
    pub server: IscsiServer,
    pub daemon: Arc<Daemon>,
    pub device: Arc<MemDevice>,
    pub lu: Arc<LogicalUnit>,
}

pub fn daemon(device: &Arc<MemDevice>) -> (Arc<Daemon>, Arc<LogicalUnit>) {
    let target = Target::new(TARGET, &[1, 2]);
    let lu = LogicalUnit::new(device.clone(), LuOptions::default(), None).unwrap();
    target.set_lun(0, Some(lu.clone()));
    let other = Arc::new(MemDevice::new(SIZE));
    target.set_lun(1, Some(LogicalUnit::new(other, LuOptions::default(), None).unwrap()));
    let (auth, denied, full, opened, access, shown) = Default::default();
    (Arc::new(Daemon { target, auth, denied, full, opened, access, shown }), lu)
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut IscsiConfig)) -> Fixture {
        let mut config = IscsiConfig::default();
        let portal = |group| Portal { group, ..Portal::new("127.0.0.1:0".parse().unwrap()) };
        config.portals = vec![portal(1), portal(1), portal(2)];
        change(&mut config);
        let device = Arc::new(MemDevice::new(SIZE));
        let (daemon, lu) = daemon(&device);
        let server = IscsiServer::start(config, daemon.clone()).unwrap();
        Fixture { server, daemon, device, lu }
    }

    pub fn address(&self, n: usize) -> SocketAddr {
        self.server.portals()[n].listen
    }

    /// A connection that has not logged in.
    pub fn connect(&self) -> Wire {
        Wire::connect(self.address(0))
    }

    /// A session, with unit attentions out of the way.
    pub fn session(&self) -> Wire {
        self.session_with(&[])
    }

    pub fn session_with(&self, keys: &[(&str, &str)]) -> Wire {
        let mut wire = self.connect();
        wire.login(keys);
        wire.clear_attentions();
        wire
    }

    /// A session from the initiator port `isid`, with unit attentions out of the way.
    pub fn session_of(&self, isid: u8) -> Wire {
        let mut wire = self.connect();
        wire.isid[5] = isid;
        wire.login(&[]);
        wire.clear_attentions();
        wire
    }

    /// Waits until `done` says so; a test that waits for ever fails.
    pub fn wait_for(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..500 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("waited in vain for {what}");
    }
}

#[derive(Debug, Clone)]
pub struct Pdu {
    pub bhs: Bhs,
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn opcode(&self) -> u8 {
        self.bhs.opcode()
    }

    /// The text in it.
    pub fn text(&self) -> Vec<(String, String)> {
        text_of(&self.data)
    }

    /// The value of a key in it.
    pub fn value(&self, key: &str) -> Option<String> {
        self.text().into_iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Status class and detail of a Login Response.
    pub fn login_status(&self) -> u16 {
        assert_eq!(self.opcode(), opcode::LOGIN_RESPONSE);
        self.bhs.u16(36)
    }

    /// The SCSI status, of a response or of a Data-In that has one.
    pub fn status(&self) -> u8 {
        match self.opcode() {
            opcode::SCSI_RESPONSE => {}
            opcode::DATA_IN => assert_ne!(self.bhs.u8(1) & 1, 0, "there is no status in it"),
            other => panic!("no status in opcode {other:#x}"),
        }
        self.bhs.u8(3)
    }

    /// Key, code and qualifier of CHECK CONDITION.
    pub fn sense(&self) -> (u8, u8, u8) {
        assert_eq!((self.opcode(), self.status()), (opcode::SCSI_RESPONSE, 2));
        (self.data[4] & 15, self.data[14], self.data[15])
    }

    /// The reason of a Reject.
    pub fn reject(&self) -> u8 {
        assert_eq!((self.opcode(), self.bhs.itt()), (opcode::REJECT, NO_TAG));
        assert_eq!(self.data.len(), 48, "the rejected header comes along");
        self.bhs.u8(2)
    }

    /// Flags and count of the residual.
    pub fn residual(&self) -> (u8, u32) {
        (self.bhs.u8(1) & 6, self.bhs.u32(44))
    }
}

pub fn text_of(data: &[u8]) -> Vec<(String, String)> {
    let text = std::str::from_utf8(data).unwrap();
    let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
    text.split('\0').filter(|p| !p.is_empty()).map(pair).collect()
}

pub fn to_text(keys: &[(&str, &str)]) -> Vec<u8> {
    keys.iter().flat_map(|(k, v)| format!("{k}={v}\0").into_bytes()).collect()
}

/// No data without an R2T.
pub const SOLICITED: [(&str, &str); 2] = [("InitialR2T", "Yes"), ("ImmediateData", "No")];

/// Functions of task management.
pub const ABORT_TASK: u8 = 1;
pub const ABORT_TASK_SET: u8 = 2;
pub const CLEAR_ACA: u8 = 3;
pub const CLEAR_TASK_SET: u8 = 4;
pub const LUN_RESET: u8 = 5;
pub const WARM_RESET: u8 = 6;
pub const COLD_RESET: u8 = 7;
pub const REASSIGN: u8 = 8;

/// Stage bits of a login request.
pub const SECURITY_TO_OPERATIONAL: u8 = 0x81;
pub const SECURITY_TO_FULL: u8 = 0x83;
pub const OPERATIONAL_TO_FULL: u8 = 0x87;

/// A connection.
pub struct Wire {
    pub stream: TcpStream,
    pub digests: Digests,
    pub cmd_sn: u32,
    pub exp_stat_sn: u32,
    pub max_cmd_sn: u32,
    pub itt: u32,
    pub isid: [u8; 6],
    pub tsih: u16,
    pub cid: u16,
    pub name: String,
}

impl Wire {
    pub fn connect(address: SocketAddr) -> Wire {
        Wire::over(TcpStream::connect(address).unwrap())
    }

    pub fn over(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Wire {
            stream,
            digests: Digests::default(),
            cmd_sn: 100,
            exp_stat_sn: 1000,
            max_cmd_sn: 0,
            itt: 0,
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: 0,
            cid: 0,
            name: NAME.into(),
        }
    }

    /// The bytes of a PDU, digests included.
    pub fn bytes(&self, bhs: &Bhs, data: &[u8]) -> Vec<u8> {
        encode(bhs, data, self.digests)
    }

    pub fn send(&mut self, bhs: &Bhs, data: &[u8]) {
        let bytes = self.bytes(bhs, data);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next PDU; an error at the end of the stream.
    pub fn try_receive(&mut self) -> io::Result<Pdu> {
        let mut bhs = Bhs([0; 48]);
        self.stream.read_exact(&mut bhs.0)?;
        let layout = bhs.layout(self.digests);
        let mut pdu = bhs.0.to_vec();
        pdu.resize(layout.total, 0);
        self.stream.read_exact(&mut pdu[48..])?;
        assert!(
            layout.header_ok(&pdu, self.digests) && layout.data_ok(&pdu, self.digests),
            "a digest is wrong"
        );
        let data = pdu[layout.data_at..layout.data_at + layout.data_len].to_vec();
        self.check_numbers(&bhs);
        Ok(Pdu { bhs, data })
    }

    /// StatSN goes up by one with each status, and the window never shrinks.
    fn check_numbers(&mut self, bhs: &Bhs) {
        let (opcode, stat_sn) = (bhs.opcode(), bhs.u32(24));
        let takes = match opcode {
            opcode::DATA_IN if bhs.u8(1) & 1 == 0 => return,
            opcode::R2T => false,
            opcode::NOP_IN => bhs.itt() != NO_TAG,
            _ => true,
        };
        assert_eq!(stat_sn, self.exp_stat_sn, "StatSN of opcode {opcode:#x}");
        self.exp_stat_sn = self.exp_stat_sn.wrapping_add(u32::from(takes));
        let max = bhs.u32(32);
        assert!(self.max_cmd_sn == 0 || max.wrapping_sub(self.max_cmd_sn) < 1 << 31, "MaxCmdSN went back");
        self.max_cmd_sn = max;
    }

    pub fn receive(&mut self) -> Pdu {
        self.try_receive().unwrap()
    }

    /// Whether the target ends the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// Asserts that nothing comes for a while.
    pub fn expect_silence(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let error = self.stream.read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }

    // --- login ---

    pub fn login_request(&mut self, flags: u8, data: &[u8]) -> Bhs {
        let mut bhs = Bhs::new(opcode::LOGIN | 0x40, flags);
        bhs.put(8, &self.isid).put_u16(14, self.tsih).put_u32(16, self.itt).put_u16(20, self.cid);
        bhs.put_u32(24, self.cmd_sn).put_u32(28, self.exp_stat_sn).set_data_len(data.len());
        bhs
    }

    /// One login request and its response.
    pub fn login_step(&mut self, flags: u8, keys: &[(&str, &str)]) -> Pdu {
        self.login_text(flags, &to_text(keys))
    }

    pub fn login_text(&mut self, flags: u8, text: &[u8]) -> Pdu {
        let bhs = self.login_request(flags, text);
        self.send(&bhs, text);
        self.receive()
    }

    /// Logs in without security; gives the last response.
    pub fn login(&mut self, keys: &[(&str, &str)]) -> Pdu {
        let response = self.try_login(keys);
        assert_eq!(response.login_status(), 0);
        response
    }

    pub fn try_login(&mut self, keys: &[(&str, &str)]) -> Pdu {
        let name = self.name.clone();
        let mut all = vec![("InitiatorName", name.as_str())];
        if !keys.iter().any(|(k, v)| *k == "SessionType" && *v == "Discovery") {
            all.push(("TargetName", TARGET));
        }
        all.extend_from_slice(keys);
        let response = self.login_step(OPERATIONAL_TO_FULL, &all);
        self.logged_in(&response);
        response
    }

    /// Takes note of what was agreed on.
    pub fn logged_in(&mut self, response: &Pdu) {
        if response.login_status() == 0 && response.bhs.u8(1) & 0x83 == 0x83 {
            self.tsih = response.bhs.u16(14);
            self.digests.header = response.value("HeaderDigest").as_deref() == Some("CRC32C");
            self.digests.data = response.value("DataDigest").as_deref() == Some("CRC32C");
            self.itt += 1;
        }
    }

    // --- full feature phase ---

    /// A request's header with its tag and numbers; CmdSN is used up.
    pub fn request(&mut self, opcode: u8, flags: u8) -> Bhs {
        let mut bhs = Bhs::new(opcode, flags);
        self.itt += 1;
        bhs.put_u32(16, self.itt).put_u32(24, self.cmd_sn).put_u32(28, self.exp_stat_sn);
        if opcode & 0x40 == 0 {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        bhs
    }

    /// A SCSI command for LUN 0.
    pub fn command(&mut self, flags: u8, cdb: &[u8], expected: u32) -> Bhs {
        let mut bhs = self.request(opcode::SCSI_COMMAND, FINAL | flags);
        bhs.put_u32(20, expected).put(32, cdb);
        bhs
    }

    pub fn run(&mut self, flags: u8, cdb: &[u8], expected: u32, data: &[u8]) -> Pdu {
        let mut bhs = self.command(flags, cdb, expected);
        bhs.set_data_len(data.len());
        self.send(&bhs, data);
        self.receive()
    }

    pub fn clear_attentions(&mut self) {
        for lun in 0..2 {
            for _ in 0..16 {
                let mut bhs = self.command(0, &[0; 6], 0);
                bhs.0[9] = lun;
                self.send(&bhs, &[]);
                if self.receive().status() == 0 {
                    break;
                }
            }
        }
    }

    pub fn read_command(&mut self, lba: u32, blocks: u16) -> Bhs {
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.command(0x40, &cdb, u32::from(blocks) * BLOCK as u32)
    }

    pub fn write_command(&mut self, lba: u32, blocks: u16) -> Bhs {
        let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.command(0x20, &cdb, u32::from(blocks) * BLOCK as u32)
    }

    /// Reads, whatever the pieces in which the data comes.
    pub fn read(&mut self, lba: u32, blocks: u16) -> Vec<u8> {
        let bhs = self.read_command(lba, blocks);
        self.send(&bhs, &[]);
        self.collect(bhs.itt())
    }

    /// The data of a read, checked piece by piece.
    pub fn collect(&mut self, itt: u32) -> Vec<u8> {
        let mut data = Vec::new();
        for data_sn in 0.. {
            let pdu = self.receive();
            assert_eq!((pdu.opcode(), pdu.bhs.itt(), pdu.bhs.u32(36)), (opcode::DATA_IN, itt, data_sn));
            assert_eq!(pdu.bhs.u32(40) as usize, data.len(), "buffer offset");
            data.extend(&pdu.data);
            if pdu.bhs.u8(1) & 1 != 0 {
                assert_eq!(pdu.status(), 0);
                return data;
            }
        }
        unreachable!()
    }

    /// Writes with immediate data.
    pub fn write(&mut self, lba: u32, data: &[u8]) {
        let mut bhs = self.write_command(lba, (data.len() / BLOCK) as u16);
        bhs.set_data_len(data.len());
        self.send(&bhs, data);
        assert_eq!(self.receive().status(), 0);
    }

    /// A Data-Out for `command`.
    pub fn data_out(&self, command: &Bhs, ttt: u32, data_sn: u32, offset: u32, last: bool) -> Bhs {
        let mut bhs = Bhs::new(opcode::DATA_OUT, if last { FINAL } else { 0 });
        bhs.put(8, &command.lun()).put_u32(16, command.itt()).put_u32(20, ttt).put_u32(28, self.exp_stat_sn);
        bhs.put_u32(36, data_sn).put_u32(40, offset);
        bhs
    }

    pub fn send_data(&mut self, command: &Bhs, ttt: u32, data_sn: u32, offset: u32, last: bool, data: &[u8]) {
        let mut bhs = self.data_out(command, ttt, data_sn, offset, last);
        bhs.set_data_len(data.len());
        self.send(&bhs, data);
    }

    /// An immediate task management request.
    pub fn task_management(&mut self, function: u8, lun: u8, referenced: u32, ref_cmd_sn: u32) -> Bhs {
        let mut bhs = self.request(opcode::TASK_MANAGEMENT | 0x40, FINAL | function);
        bhs.0[9] = lun;
        bhs.put_u32(20, referenced).put_u32(32, ref_cmd_sn);
        self.send(&bhs, &[]);
        bhs
    }

    /// Sends an immediate task management request, and gives back the response code.
    pub fn manage(&mut self, function: u8, lun: u8, referenced: u32) -> u8 {
        let request = self.task_management(function, lun, referenced, 0);
        let answer = self.receive();
        assert_eq!((answer.opcode(), answer.bhs.itt()), (opcode::TASK_MANAGEMENT_RESPONSE, request.itt()));
        answer.bhs.u8(2)
    }

    /// A ping, to see that the connection is well and that everything before it was served.
    pub fn ping(&mut self) {
        let mut bhs = self.request(opcode::NOP_OUT | 0x40, FINAL);
        bhs.put_u32(20, NO_TAG).set_data_len(4);
        self.send(&bhs, b"ping");
        let answer = self.receive();
        assert_eq!((answer.opcode(), answer.data.as_slice()), (opcode::NOP_IN, &b"ping"[..]));
        assert_eq!((answer.bhs.itt(), answer.bhs.ttt()), (bhs.itt(), NO_TAG));
    }

    pub fn text_request(&mut self, flags: u8, ttt: u32, text: &[u8]) -> Pdu {
        let mut bhs = self.request(opcode::TEXT, flags);
        bhs.put_u32(20, ttt).set_data_len(text.len());
        self.send(&bhs, text);
        self.receive()
    }

    /// Receives an R2T: its tag, offset and length.
    pub fn r2t(&mut self, command: &Bhs, r2t_sn: u32) -> (u32, u32, u32) {
        let pdu = self.receive();
        assert_eq!((pdu.opcode(), pdu.bhs.itt(), pdu.bhs.u32(36)), (opcode::R2T, command.itt(), r2t_sn));
        assert_eq!(pdu.bhs.lun(), command.lun());
        (pdu.bhs.ttt(), pdu.bhs.u32(40), pdu.bhs.u32(44))
    }

    /// A write that waits for its data.
    pub fn waiting(&mut self) -> (Bhs, u32) {
        let command = self.write_command(0, 1);
        self.send(&command, &[]);
        let (ttt, _, _) = self.r2t(&command, 0);
        (command, ttt)
    }

    pub fn logout(&mut self, reason: u8, cid: u16) -> Pdu {
        let mut bhs = self.request(opcode::LOGOUT, FINAL | reason);
        bhs.put_u16(20, cid);
        self.send(&bhs, &[]);
        self.receive()
    }
}

/// The bytes of a PDU, digests included.
pub fn encode(bhs: &Bhs, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = bhs.0.to_vec();
    if digests.header {
        bytes.extend(digest(&bhs.0));
    }
    let mut padded = data.to_vec();
    padded.resize(data.len().next_multiple_of(4), 0);
    bytes.extend(&padded);
    if digests.data && !data.is_empty() {
        bytes.extend(digest(&padded));
    }
    bytes
}

/// Data that can be told from other data.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ seed).collect()
}
