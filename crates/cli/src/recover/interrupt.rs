//! Signals that ask a command to end. The command notices them at points where it can clean up.

use crate::failure::Failure;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Whether a signal has asked the process to end. Without [`Interrupt::listen`] a signal ends the
/// process directly.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP are only recorded, until the process ends.
    pub(super) fn listen() -> Result<Interrupt, Failure> {
        let interrupt = Interrupt::default();
        let asked = interrupt.0.clone();
        let begin = || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let inside = runtime.enter();
            let (mut int, mut term, mut hup) = (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            );
            drop(inside);
            std::thread::Builder::new().name("signals".into()).spawn(move || {
                runtime.block_on(async {
                    tokio::select! { _ = int.recv() => {}, _ = term.recv() => {}, _ = hup.recv() => {} }
                });
                asked.store(true, Ordering::Release);
            })?;
            Ok(())
        };
        begin().map_err(|e| Failure::Failed(format!("listen for signals: {e}")))?;
        Ok(interrupt)
    }

    /// Returns an error if a signal has asked the process to end.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Failure::Failed("interrupted by a signal".into())),
            false => Ok(()),
        }
    }
}
