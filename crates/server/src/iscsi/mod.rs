//! The iSCSI target of the daemon. Every volume has a target of its own. The file of targets keeps
//! created targets, access rules and CHAP accounts across restarts.

mod control;
mod credentials;
mod doors;
mod exports;
mod making;
mod names;
mod nbd_access;
mod nbd_rules;
mod registry;
mod store;
mod stored;
mod target;
mod to_api;

pub(crate) use exports::{LU_KIND, LU_VERSION, is_lu_file};
pub(crate) use making::Making;
pub(crate) use nbd_access::NbdRules;
pub(crate) use nbd_rules::{NbdAccess, NbdRule};
pub(crate) use store::{STORED, names_and_files, renew, verify};
pub(crate) use target::IscsiTarget;
