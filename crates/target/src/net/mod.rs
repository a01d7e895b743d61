//! The layer that both targets share below their protocols: listeners, limits on connections, byte
//! streams, buffers, worker threads, limits on memory.

pub mod admission;
pub(crate) mod answered;
pub(crate) mod attempts;
pub(crate) mod budget;
pub(crate) mod buffers;
pub(crate) mod connections;
pub(crate) mod listener;
pub(crate) mod outbox;
pub(crate) mod pool;
pub(crate) mod repeated;
pub(crate) mod transport;
pub(crate) mod watch;

pub use listener::Listen;
pub use pool::WorkerPool;
pub use transport::Transport;

/// Fills `buf` with the system's random numbers.
pub(crate) fn random(buf: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        filled += rustix::rand::getrandom(&mut buf[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}
