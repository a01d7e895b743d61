//! Serves memory over iSCSI, without a pool. Use it to try initiators and to measure the cost of
//! the protocol alone.
//!
//! `iscsiserve SIZE_MIB ADDRESS:PORT[/GROUP]...`, optionally with `user=NAME:SECRET`,
//! `mutual=NAME:SECRET`, `header_digest=required` and `data_digest=required`. The target is
//! `iqn.2026-11.io.hindcast:mem`, LUN 0.

#[path = "../tests/common/mem.rs"]
mod mem;

use hindcast_target::iscsi::{
    AuthPolicy, ChapUser, Denied, DigestPolicy, Grant, Initiator, IscsiConfig, IscsiServer, Portal, Secret,
    TargetEntry, Targets,
};
use hindcast_target::scsi::{Access, LogicalUnit, LuOptions, Target};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "iqn.2026-11.io.hindcast:mem";

struct One {
    target: Arc<Target>,
    auth: AuthPolicy,
}

impl Targets for One {
    fn list(&self, _: &Initiator<'_>) -> Vec<TargetEntry> {
        vec![TargetEntry { name: NAME.into(), portal_groups: Vec::new() }]
    }

    fn discovery_auth(&self, _: &Initiator<'_>) -> AuthPolicy {
        self.auth.clone()
    }

    fn login(&self, target: &str, _: &Initiator<'_>) -> Result<Grant, Denied> {
        let (access, auth) = (Access::default(), self.auth.clone());
        let grant = Grant { name: NAME.into(), access, auth, alias: None };
        if target == NAME { Ok(grant) } else { Err(Denied::NotFound) }
    }

    fn open(&self, _: &Grant) -> Result<Arc<Target>, Denied> {
        Ok(self.target.clone())
    }
}

fn user(arg: &str) -> Result<ChapUser, &'static str> {
    let (name, secret) = arg.split_once(':').ok_or("a user is NAME:SECRET")?;
    Ok(ChapUser { name: name.into(), secret: Secret::new(secret) })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let size: u64 = args.next().ok_or("a size in MiB comes first")?.parse()?;
    let mut config = IscsiConfig::default();
    let (mut users, mut mutual) = (Vec::new(), None);
    for arg in args {
        if let Some(arg) = arg.strip_prefix("user=") {
            users.push(user(arg)?);
        } else if let Some(arg) = arg.strip_prefix("mutual=") {
            mutual = Some(user(arg)?);
        } else if arg == "header_digest=required" {
            config.header_digest = DigestPolicy::Required;
        } else if arg == "data_digest=required" {
            config.data_digest = DigestPolicy::Required;
        } else {
            let (address, group) = arg.split_once('/').unwrap_or((&arg, "1"));
            let (listen, group) = (address.parse()?, group.parse()?);
            config.portals.push(Portal { listen, group, advertise: None });
        }
    }
    let mut groups: Vec<u16> = config.portals.iter().map(|p| p.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let target = Target::new(NAME, &groups);
    let device = Arc::new(mem::MemDevice::new(size << 20));
    target.set_lun(
        0,
        Some(LogicalUnit::new(device, LuOptions { atomic_bytes: 128 << 10, ..LuOptions::default() }, None)?),
    );
    let auth = if users.is_empty() { AuthPolicy::None } else { AuthPolicy::Chap { users, mutual } };
    let server = IscsiServer::start(config, Arc::new(One { target, auth }))?;
    // Serves until standard input ends.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.shutdown(Duration::from_secs(5));
    Ok(())
}
