//! redb on the engine's own disk seam, so that the simulator crashes the catalog too.

use crate::disk::{Disk, SyncPurpose};
use std::io;
use std::sync::Arc;

pub(super) struct DiskBackend {
    disk: Arc<dyn Disk>,
}

impl DiskBackend {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        disk.advise_random();
        DiskBackend { disk }
    }
}

impl std::fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskBackend")
    }
}

impl redb::StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(out, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync(SyncPurpose::Catalog)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write_at(data, offset)
    }
}
