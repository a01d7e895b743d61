//! Hindcast's network targets: the servers that clients connect to, for NBD and iSCSI.
//!
//! A target uses the engine's block-device interface and nothing else of the engine (I1). Codecs
//! are pure functions from bytes to bytes. Sessions turn requests into calls of a [`BlockDevice`]
//! and answer them. The daemon provides the devices: by [`Exports`] for NBD, by [`iscsi::Targets`]
//! for iSCSI.
#![forbid(unsafe_code)]

use hindcast_engine::Result;
use hindcast_engine::device::BlockDevice;
use nbd::Client;
use std::sync::Arc;
use uuid::Uuid;

pub mod iscsi;
pub mod nbd;
mod net;
pub mod scsi;

pub use net::admission;
pub use net::listener::listen_unix;
pub use net::repeated::Repeated;

/// What a target may tell about an export without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportEntry {
    /// The name a client asks for; opaque UTF-8 to the target.
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
}

/// What differs between an export and an earlier state of it. May name too much, never too little.
pub trait Changes: Send + Sync {
    /// Describes `offset..offset+len` as runs in order, `(length in bytes, whether it may differ)`;
    /// stops early, at a run's end, once `max_runs` were reported.
    fn runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<(u64, bool)>>;

    /// The identity of the device that was compared, as its
    /// [`DeviceInfo`](hindcast_engine::device::DeviceInfo) tells it: the export's name may come to
    /// mean another one before it is opened.
    fn of(&self) -> Uuid;
}

/// The names that clients may connect to, and the devices behind them. Called from connection
/// threads; may block.
pub trait Exports: Send + Sync {
    /// The exports as one client may see and open them. It applies access rules at each call, and
    /// not only now. `None`: every client may see and open all of them.
    fn seen_by(&self, _client: &Arc<Client>) -> Option<Box<dyn Exports>> {
        None
    }

    /// Everything a client may see, in the order to show it.
    fn list(&self) -> Vec<ExportEntry>;

    /// The exports of [`Exports::list`] as a shared list, to be kept until a client has taken it
    /// all. Clients that are shown the same exports share one list.
    fn listed(&self) -> Arc<[ExportEntry]> {
        self.list().into()
    }

    /// Opens a name. The empty name asks for the default export; whether there is one is the
    /// implementer's choice.
    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>>;

    /// The canonical form of a name: what [`Exports::list`] shows, and what connections are known
    /// and disconnected by. An implementer that has a default export or other aliases resolves them
    /// here.
    fn canonical(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Text for people about one export, if there is any.
    fn describe(&self, name: &str) -> Option<String> {
        let name = self.canonical(name);
        self.list().into_iter().find(|e| e.name == name).map(|e| e.description).filter(|d| !d.is_empty())
    }

    /// The snapshots that an export can be compared with, oldest first: the `most` newest of them.
    fn snapshots(&self, _name: &str, _most: usize) -> Vec<String> {
        Vec::new()
    }

    /// What differs between an export and a state of its past, as clients name that. Holds both.
    fn changed_since(&self, _name: &str, past: &str) -> Result<Arc<dyn Changes>> {
        let text = format!("find {past}: this export has no snapshots or history");
        Err(hindcast_engine::Error::new(hindcast_engine::ErrorKind::NotFound, text))
    }
}
