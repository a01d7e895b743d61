//! The iSCSI target of the daemon. Every volume is a target of its own. Targets, rules and accounts
//! that the operator sets up are kept across restarts.

mod control;
mod credentials;
mod doors;
mod exports;
mod making;
mod names;
mod registry;
mod store;
mod stored;
mod target;
mod to_api;

pub(crate) use exports::{LU_KIND, LU_VERSION, is_lu_file};
pub(crate) use making::{Making, NbdRules};
pub(crate) use store::{STORED, names_and_files, renew, verify};
pub(crate) use target::IscsiTarget;
