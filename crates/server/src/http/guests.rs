//! Connections to the admin API, and their limits.
//!
//! Unix sockets and TCP each have a share of the connections that the other can't use. TCP
//! connections whose client has not shown the token yet have a small pool beside these shares. When
//! that pool is full, the address with the most connections in it loses its oldest one.

use crate::host_paths::Door;
use hindcast_target::admission::{Admission, Full, Limits, ROOM_WAIT, Source};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Time by which the server delays the response to a wrong token.
const HOLD: Duration = Duration::from_secs(1);
/// Maximum number of responses that are delayed at one time.
const MAX_HELD: usize = 16;

/// All connections to the admin API.
pub(super) struct Guests {
    state: Mutex<State>,
    /// Notified when a connection ends.
    left: Notify,
    /// Places for delayed responses to wrong tokens.
    held: Semaphore,
}

struct State {
    admission: Admission,
    /// All connections, by number. The references are weak, because a [`Guest`] belongs to its
    /// connection.
    all: BTreeMap<u64, Weak<Guest>>,
    last: u64,
}

/// A connection to the admin API. Its drop frees its place.
pub(super) struct Guest {
    id: u64,
    address: Option<IpAddr>,
    guests: Arc<Guests>,
    /// Notified when the connection has to end, to make room for another one.
    go: Notify,
}

impl Guests {
    /// Makes a value without connections. At most `all` connections may send requests at a time.
    pub(super) fn new(all: usize) -> Arc<Guests> {
        // A quarter for each kind of socket alone; of what TCP may have, one address has at most
        // half.
        let reserve = all / 4;
        let limits = Limits::new(all, (all - reserve).div_ceil(2), reserve);
        let state = State { admission: Admission::new(limits), all: BTreeMap::new(), last: 0 };
        let held = Semaphore::new(MAX_HELD);
        Arc::new(Guests { state: Mutex::new(state), left: Notify::new(), held })
    }

    /// Adds a connection. If other connections have to end first, this function waits for at most
    /// [`ROOM_WAIT`]. Returns `None` if there is no room.
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

    /// Adds a connection without waiting. A connection over a Unix socket needs no token.
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
    /// Waits for the time by which the response to a wrong token is delayed. Returns `false`
    /// without waiting if too many responses are delayed already.
    ///
    /// The server never delays a client with the right token. Many clients may come from one
    /// address, for example that of a proxy. One client there that guesses tokens must not shut out
    /// the others.
    pub(super) async fn hold_back(&self) -> bool {
        let Ok(_place) = self.guests.held.try_acquire() else { return false };
        tokio::time::sleep(HOLD).await;
        true
    }

    /// Returns the address of the client. `None`: a Unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Marks the connection as one that may send requests: it came over a Unix socket, or its
    /// client has shown the token. Returns `false` if there is no room for it.
    pub(super) fn settle(&self) -> bool {
        self.guests.state.lock().admission.settle(self.id).is_ok()
    }

    /// Returns when the connection has to end, to make room for another one.
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

/// Handles a request that arrived through `door`.
pub(super) async fn through<T>(door: Door, request: impl Future<Output = T>) -> T {
    DOOR.scope(door, request).await
}

/// Returns how the request that is being handled arrived.
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
