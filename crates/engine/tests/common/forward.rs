//! Disks and directories that change some operations of another one, and forward the others to it.

/// Methods of `Dir` or `Disk` that call those of the field `$inner`. They are named one by one, so
/// that each test has to consider a new operation.
macro_rules! forward {
    ($inner:tt:) => {};
    ($inner:tt: lock $($rest:ident)*) => {
        fn lock(&self, name: &str) -> std::io::Result<Box<dyn Send + Sync>> {
            self.$inner.lock(name)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: remove $($rest:ident)*) => {
        fn remove(&self, name: &str) -> std::io::Result<()> {
            self.$inner.remove(name)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: rename $($rest:ident)*) => {
        fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
            self.$inner.rename(from, to)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: list $($rest:ident)*) => {
        fn list(&self) -> std::io::Result<Vec<String>> {
            self.$inner.list()
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: sync $($rest:ident)*) => {
        fn sync(&self, purpose: hindcast_engine::disk::SyncPurpose) -> std::io::Result<()> {
            self.$inner.sync(purpose)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: read_at $($rest:ident)*) => {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.$inner.read_at(buf, offset)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: try_read_at $($rest:ident)*) => {
        fn try_read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<bool> {
            self.$inner.try_read_at(buf, offset)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: write_at $($rest:ident)*) => {
        fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
            self.$inner.write_at(buf, offset)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: write_vectored_at $($rest:ident)*) => {
        fn write_vectored_at(&self, bufs: &mut [std::io::IoSlice<'_>], offset: u64) -> std::io::Result<()> {
            self.$inner.write_vectored_at(bufs, offset)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: len $($rest:ident)*) => {
        fn len(&self) -> std::io::Result<u64> {
            self.$inner.len()
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: set_len $($rest:ident)*) => {
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.$inner.set_len(len)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: allocate $($rest:ident)*) => {
        fn allocate(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.$inner.allocate(offset, len)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: punch $($rest:ident)*) => {
        fn punch(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.$inner.punch(offset, len)
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: backing_available $($rest:ident)*) => {
        fn backing_available(&self) -> std::io::Result<Option<hindcast_engine::disk::Backing>> {
            self.$inner.backing_available()
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: advise_random $($rest:ident)*) => {
        fn advise_random(&self) {
            self.$inner.advise_random();
        }
        forward!($inner: $($rest)*);
    };
    ($inner:tt: is_block_device $($rest:ident)*) => {
        fn is_block_device(&self) -> bool {
            self.$inner.is_block_device()
        }
        forward!($inner: $($rest)*);
    };
}
