//! Clients that are connected to the admin API, and the limits on how many there may be.
//!
//! Unix sockets and TCP each have a share of the connections that the other can't use. TCP
//! connections that have not shown the token yet have a small pool beside these shares. In that
//! pool the oldest connection gives way to the newest.

use crate::host_paths::Door;
use hindcast_target::admission::{Admission, Full, Limits, ROOM_WAIT, Source};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// How long the answer to a wrong token is held back.
const HOLD: Duration = Duration::from_secs(1);
/// Answers that are held back at a time.
const MAX_HELD: usize = 16;

/// All that are connected.
pub(super) struct Guests {
    state: Mutex<State>,
    /// A client has left.
    left: Notify,
    /// For answers to wrong tokens, which are held back.
    held: Semaphore,
}

struct State {
    admission: Admission,
    /// Weak: a guest belongs to its connection.
    all: BTreeMap<u64, Weak<Guest>>,
    last: u64,
}

/// One that is connected. Leaves when it is dropped.
pub(super) struct Guest {
    id: u64,
    address: Option<IpAddr>,
    guests: Arc<Guests>,
    /// It has to make room.
    go: Notify,
}

impl Guests {
    /// No clients yet, and at most `all` that may send requests.
    pub(super) fn new(all: usize) -> Arc<Guests> {
        // A quarter for each kind of socket alone; of what TCP may have, one address has at most
        // half.
        let reserve = all / 4;
        let limits = Limits::new(all, (all - reserve).div_ceil(2), reserve);
        let state = State { admission: Admission::new(limits), all: BTreeMap::new(), last: 0 };
        let held = Semaphore::new(MAX_HELD);
        Arc::new(Guests { state: Mutex::new(state), left: Notify::new(), held })
    }

    /// Takes a connection in; `None` if there is no room. Waits for those that make room for it.
    pub(super) async fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Arc<Guest>> {
        let deadline = Instant::now() + ROOM_WAIT;
        loop {
            let left = self.left.notified();
            match self.enter_now(address) {
                Err(Full::Leaving) => tokio::time::timeout_at(deadline, left).await.ok()?,
                entered => return entered.ok(),
            }
        }
    }

    /// Takes a connection in. Over a Unix socket it needs to show nothing.
    fn enter_now(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Arc<Guest>, Full> {
        let source = address.map_or(Source::Local, Source::of);
        let mut state = self.state.lock();
        let id = state.last + 1;
        let goes = state.admission.enter(id, source)?;
        state.last = id;
        let guest = Arc::new(Guest { id, address, guests: self.clone(), go: Notify::new() });
        state.all.insert(id, Arc::downgrade(&guest));
        let goes = goes.and_then(|id| state.all.get(&id)).and_then(Weak::upgrade);
        drop(state);
        if let Some(goes) = goes {
            goes.go.notify_one();
        }
        if source == Source::Local && !guest.settle() {
            return Err(Full::All);
        }
        Ok(guest)
    }
}

impl Guest {
    /// Waits as long as a client that has shown a wrong token has to. `false`: too many wait
    /// already.
    ///
    /// A client with the right token is never held back. Many clients may come from one address,
    /// for example a proxy's, and one that guesses there must not shut out the others.
    pub(super) async fn hold_back(&self) -> bool {
        let Ok(_place) = self.guests.held.try_acquire() else { return false };
        tokio::time::sleep(HOLD).await;
        true
    }

    /// Where it is.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// It may ask for things: it came by a door that is open to it, or has shown the token.
    /// `false`: there is no room for it.
    pub(super) fn settle(&self) -> bool {
        self.guests.state.lock().admission.settle(self.id).is_ok()
    }

    /// Ends when it has to make room.
    pub(super) async fn has_to_go(&self) {
        self.go.notified().await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.guests.state.lock();
        state.all.remove(&self.id);
        state.admission.leave(self.id);
        drop(state);
        self.guests.left.notify_waiters();
    }
}

tokio::task_local! {
    static DOOR: Door;
}

/// Handles a request as one that came in by `door`.
pub(super) async fn through<T>(door: Door, request: impl Future<Output = T>) -> T {
    DOOR.scope(door, request).await
}

/// The door by which the request came in that is being handled.
pub(super) fn door() -> Door {
    DOOR.try_with(|door| *door).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> Option<IpAddr> {
        Some([10, 0, 0, n].into())
    }

    #[test]
    fn the_network_leaves_room_for_the_socket() {
        let guests = Guests::new(16);
        let mut held = Vec::new();
        for n in 0..64 {
            let Ok(guest) = guests.enter_now(address(n % 8)) else { continue };
            if guest.settle() {
                held.push(guest);
            }
        }
        assert_eq!(held.len(), 12);
        let local: Vec<_> = std::iter::from_fn(|| guests.enter_now(None).ok()).collect();
        assert_eq!(local.len(), 4);
        drop(held);
        let more: Vec<_> = std::iter::from_fn(|| guests.enter_now(None).ok()).collect();
        assert_eq!(more.len(), 8);
        drop((local, more));
        assert!(guests.state.lock().all.is_empty());
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let guests = Guests::new(16);
        let held: Vec<_> =
            std::iter::from_fn(|| guests.enter_now(address(1)).ok().filter(|guest| guest.settle())).collect();
        assert_eq!(held.len(), 6);
        assert!(guests.enter_now(address(2)).is_ok_and(|guest| guest.settle()));
    }

    #[test]
    fn who_shows_no_token_gives_way() {
        let guests = Guests::new(16);
        let silent: Vec<_> = (0..7).map(|_| guests.enter_now(address(1)).unwrap()).collect();
        let known = guests.enter_now(address(2)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for early in &silent[..4] {
                early.has_to_go().await;
            }
        });
        assert!(!silent[0].settle(), "it is too late");
        assert!(known.settle() && silent[6].settle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_waits_for_those_that_make_room() {
        let guests = Guests::new(16);
        // Four are pending, four have been told to go and are still there.
        let mut silent: Vec<_> = (0..8).map(|_| guests.enter_now(address(1)).unwrap()).collect();
        assert_eq!(guests.enter_now(address(2)).err(), Some(Full::Leaving));
        assert!(guests.enter(address(2)).await.is_none(), "nobody goes");
        let (newcomer, ()) = tokio::join!(guests.enter(address(2)), async {
            tokio::time::sleep(ROOM_WAIT / 2).await;
            drop(silent.remove(0));
        });
        assert!(newcomer.is_some_and(|guest| guest.settle()));
    }
}
