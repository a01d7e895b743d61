//! The health that `/healthz` reports. One thread determines the health, once for all requests that
//! wait at that time. So many probes at once do not occupy the threads that administer the pool.

use crate::app::App;
use hindcast_api::Health;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use tokio::sync::oneshot;

/// Time after which a pool that does not answer counts as unhealthy.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requests the pool's health from the thread that determines it.
#[derive(Debug, Clone)]
pub(super) struct Probe(Sender<oneshot::Sender<Health>>);

impl Probe {
    /// Starts the thread. The thread ends when the last `Probe` is dropped, or with the server.
    pub(super) fn start(app: &Arc<App>) -> io::Result<Probe> {
        let app = Arc::downgrade(app);
        Self::looking(move || app.upgrade().as_deref().map(App::health))
    }

    fn looking(look: impl Fn() -> Option<Health> + Send + 'static) -> io::Result<Probe> {
        let (ask, asked) = mpsc::channel::<oneshot::Sender<Health>>();
        let run = move || {
            while let Ok(first) = asked.recv() {
                // Every request that came before the look gets what it finds.
                let waiting: Vec<_> = std::iter::once(first).chain(asked.try_iter()).collect();
                let Some(health) = look() else { return };
                for one in waiting {
                    // It may have gone.
                    let _ = one.send(health.clone());
                }
            }
        };
        std::thread::Builder::new().name("healthz".into()).spawn(run)?;
        Ok(Probe(ask))
    }

    /// Returns the health, as determined after this call. `None`: the thread did not answer in
    /// time.
    pub(super) async fn health(&self) -> Option<Health> {
        let (tell, told) = oneshot::channel();
        self.0.send(tell).ok()?;
        tokio::time::timeout(TIMEOUT, told).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::HealthState;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn many_probes_are_one_look() {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let (begin, begun) = mpsc::channel::<()>();
        let (go, gone) = mpsc::channel::<()>();
        let probe = Probe::looking(move || {
            LOOKS.fetch_add(1, Ordering::SeqCst);
            begin.send(()).ok()?;
            gone.recv().ok()?;
            Some(Health { state: HealthState::Healthy, problems: Vec::new() })
        })
        .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let ask = || {
                tokio::spawn({
                    let probe = probe.clone();
                    async move { probe.health().await }
                })
            };
            let first = ask();
            tokio::task::yield_now().await;
            begun.recv().unwrap();
            let others: Vec<_> = (0..100).map(|_| ask()).collect();
            // A few turns, until all have asked.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            go.send(()).unwrap();
            go.send(()).unwrap();
            assert!(first.await.unwrap().is_some());
            for other in others {
                assert!(other.await.unwrap().is_some());
            }
        });
        assert_eq!(LOOKS.load(Ordering::SeqCst), 2, "one for the first, one for those that came during it");
    }
}
