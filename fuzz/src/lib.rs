//! What the fuzz targets share: devices, clients and scripts of the targets' own tests, and how
//! they are put together.

#[path = "../../crates/target/tests/common/initiator.rs"]
pub mod initiator;
#[path = "../../crates/target/tests/common/mem.rs"]
pub mod mem;
#[path = "../../crates/target/tests/common/script.rs"]
pub mod script;

use hindcast_target::iscsi::{IscsiConfig, WorkerPool, serve_transport};
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions, LuStore, Nexus, Target};
use initiator::Daemon;
use mem::MemDevice;
use script::Script;
use std::sync::Arc;

/// Makes a target with one logical unit over a device, and two initiators that are attached to it.
/// Returns `None` where the unit can't be made.
pub fn two_initiators(
    device: Arc<MemDevice>,
    options: LuOptions,
    store: Option<Arc<dyn LuStore>>,
) -> Option<[Arc<Nexus>; 2]> {
    let target = Target::new("iqn.t", &[1, 2]);
    target.set_lun(0, Some(LogicalUnit::new(device, options, store).ok()?));
    let attach = |name, group| target.attach(name, group, Access::default(), Arc::new(()));
    Some([attach("iqn.a,i,0x1", 1)?, attach("iqn.b,i,0x2", 2)?])
}

/// Serves an iSCSI connection on which these pieces arrive, and returns what was answered.
pub fn serve_iscsi(config: &IscsiConfig, daemon: Arc<Daemon>, input: Vec<Vec<u8>>) -> Vec<u8> {
    let script = Script::new(input);
    let addresses = ("127.0.0.1:1".parse().expect("it is one"), "127.0.0.1:3260".parse().expect("it is one"));
    let transport = Arc::new(script.clone());
    let _ = serve_transport(config, daemon, WorkerPool::inline(), transport, addresses);
    std::mem::take(&mut *script.output.lock())
}

/// Takes a reply to an option of the NBD handshake from the beginning of an answer. Returns the
/// rest, or `None` if it begins with something else.
pub fn after_option_reply(answer: &[u8]) -> Option<&[u8]> {
    let data = answer.strip_prefix(&0x0003_e889_0455_65a9u64.to_be_bytes())?;
    let len = u32::from_be_bytes([data[8], data[9], data[10], data[11]]);
    Some(&data[12 + len as usize..])
}
