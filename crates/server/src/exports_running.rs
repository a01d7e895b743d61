//! The exports that run ([`RunningExports`]): their progress, and how a request stops one.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The exports that run.
#[derive(Default)]
pub(crate) struct RunningExports(Arc<Mutex<BTreeMap<String, Arc<Running>>>>);

#[derive(Default)]
struct Running {
    /// Number of bytes that were sent.
    sent: AtomicU64,
    is_stopped: AtomicBool,
}

/// An export that runs. Dropping it removes it from the list.
pub(crate) struct RunningExport {
    all: Arc<Mutex<BTreeMap<String, Arc<Running>>>>,
    name: String,
    running: Arc<Running>,
}

impl RunningExports {
    /// Registers an export. If another export has this address, the new one gets a number, as in
    /// `db@s#2`.
    pub(crate) fn begin(&self, address: &str) -> RunningExport {
        let mut all = self.0.lock();
        let numbered = (2..).map(|n: u64| format!("{address}#{n}"));
        let mut names = std::iter::once(address.to_owned()).chain(numbered);
        let name = names.find(|name| !all.contains_key(name)).unwrap_or_default();
        let running = Arc::<Running>::default();
        all.insert(name.clone(), running.clone());
        RunningExport { all: self.0.clone(), name, running }
    }

    /// Returns the addresses of all exports, with the number of bytes that were sent.
    pub(crate) fn running(&self) -> Vec<(String, u64)> {
        let all = self.0.lock();
        all.iter().map(|(name, running)| (name.clone(), running.sent.load(Ordering::Relaxed))).collect()
    }

    /// Stops an export. Its stream ends before its trailer, so its reader knows that it is not
    /// complete.
    pub(crate) fn stop(&self, name: &str) {
        if let Some(running) = self.0.lock().get(name) {
            running.is_stopped.store(true, Ordering::Relaxed);
        }
    }
}

impl RunningExport {
    /// The identity of the export among the tasks.
    pub(crate) fn task(&self) -> String {
        format!("export:{}", self.name)
    }

    /// The address of the export, with its number.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Counts bytes that were sent. Returns false if a request has stopped the export.
    pub(crate) fn sent(&self, bytes: u64) -> bool {
        self.running.sent.fetch_add(bytes, Ordering::Relaxed);
        !self.running.is_stopped.load(Ordering::Relaxed)
    }
}

impl Drop for RunningExport {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_one_address_are_told_apart() {
        let exports = RunningExports::default();
        let (first, second) = (exports.begin("db@s"), exports.begin("db@s"));
        assert!(first.sent(7) && second.sent(1) && second.sent(1));
        assert_eq!(exports.running(), [("db@s".to_owned(), 7), ("db@s#2".to_owned(), 2)]);
        exports.stop(second.name());
        assert!(first.sent(1) && !second.sent(1));
        assert_eq!(second.task(), "export:db@s#2");
        drop(first);
        assert_eq!(exports.begin("db@s").name(), "db@s");
    }
}
