//! Limits on connections that no single source can use up.
//!
//! A connection is *pending* until its client has shown that it knows what it wants (a login, a
//! negotiation, a token). From then on it is *settled*. Pending connections have a pool of their
//! own. When that pool is full, the source that has most connections in it loses its oldest one. So
//! a client that opens connections and says nothing on them displaces only its own connections.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Time that a new connection waits for another one that was asked to end. A connection ends when
/// its thread runs, and on a busy machine that takes a while.
pub const ROOM_WAIT: Duration = Duration::from_secs(1);

/// The source of a connection. Limits of connections per source count by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A Unix socket. All processes of this machine that may open the socket are one source.
    Local,
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address. A host can use all addresses that begin with them.
    V6(u64),
}

impl Source {
    /// Returns the source of a connection from `address`.
    pub fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source::V4(address),
            IpAddr::V6(address) => Source::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of settled connections.
    pub all: usize,
    /// Maximum number of settled connections of one address.
    pub own: usize,
    /// Number of settled connections, of `all`, that only Unix sockets may use. The same number is
    /// reserved for TCP. 0 if the server listens on only one of the two.
    pub reserve: usize,
    /// Maximum number of pending connections. They do not count in `all`.
    pub pending: usize,
}

impl Limits {
    /// Makes limits with a maximum of pending connections that fits `all`. `reserve` is at most
    /// half of `all`.
    pub fn new(all: usize, own: usize, reserve: usize) -> Limits {
        Limits { all, own, reserve: reserve.min(all / 2), pending: pending(all) }
    }

    /// Returns the maximum number of settled connections over one kind of socket.
    fn of_kind(&self) -> usize {
        self.all - self.reserve
    }
}

/// Returns the maximum number of pending connections beside `all` settled ones.
fn pending(all: usize) -> usize {
    (all / 4).clamp(4, 256)
}

/// Returns the number of file descriptors that `all` settled connections may need, including those
/// of pending connections and of connections that are closing.
pub fn descriptors(all: usize) -> usize {
    all + 2 * pending(all)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pending,
    /// The connection was asked to end and has not ended yet.
    Leaving,
    Settled,
}

/// The connections of a server, counted against its limits.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    /// Connections by number. A later connection has a larger number.
    seats: BTreeMap<u64, (Source, Stage)>,
    /// Number of settled connections of each source. A source without any has no entry.
    own: HashMap<Source, usize>,
    local: usize,
    settled: usize,
    pending: usize,
    leaving: usize,
}

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All connections, or all of this kind of socket, are in use.
    All,
    /// The source has its maximum number of connections.
    Own,
    /// Many connections were asked to end and have not ended yet. A place is free when one of them
    /// ends.
    Leaving,
}

impl Admission {
    /// Makes a value without connections.
    pub fn new(limits: Limits) -> Admission {
        let (seats, own) = Default::default();
        Admission { limits, seats, own, local: 0, settled: 0, pending: 0, leaving: 0 }
    }

    fn room(&self, source: Source) -> Result<(), Full> {
        let kind = if source == Source::Local { self.local } else { self.settled - self.local };
        if self.settled >= self.limits.all || kind >= self.limits.of_kind() {
            return Err(Full::All);
        }
        let own = self.own.get(&source).copied().unwrap_or(0);
        if source != Source::Local && own >= self.limits.own { Err(Full::Own) } else { Ok(()) }
    }

    /// Adds a connection. `id` must be larger than the numbers of all connections before it. A
    /// connection over a Unix socket is settled at once; another one is pending. If the result is
    /// `Some(id)`, the caller must ask that connection to end, to make room. After
    /// [`Full::Leaving`] the caller may try again for [`ROOM_WAIT`].
    pub fn enter(&mut self, id: u64, source: Source) -> Result<Option<u64>, Full> {
        self.room(source)?;
        let mut goes = None;
        if source == Source::Local {
            // No client from another machine can open the socket. So the connection is as good as
            // settled, and no flood keeps it out.
            self.seats.insert(id, (source, Stage::Settled));
            self.count(source);
            return Ok(None);
        }
        if self.pending >= self.limits.pending {
            if self.leaving >= self.limits.pending {
                return Err(Full::Leaving);
            }
            goes = self.greediest();
            if let Some(seat) = goes.and_then(|id| self.seats.get_mut(&id)) {
                seat.1 = Stage::Leaving;
                self.pending -= 1;
                self.leaving += 1;
            }
        }
        self.seats.insert(id, (source, Stage::Pending));
        self.pending += 1;
        Ok(goes)
    }

    /// Returns the oldest pending connection of the source that has most of them.
    fn greediest(&self) -> Option<u64> {
        let mut sources: HashMap<Source, (usize, u64)> = HashMap::new();
        for (id, (source, _)) in self.seats.iter().filter(|(_, (_, stage))| *stage == Stage::Pending) {
            sources.entry(*source).or_insert((0, *id)).0 += 1;
        }
        sources.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - oldest)).map(|(_, id)| id)
    }

    /// Makes a pending connection settled. Fails if the limits leave no place, or if the connection
    /// was already asked to end.
    pub fn settle(&mut self, id: u64) -> Result<(), Full> {
        let Some((source, stage)) = self.seats.get(&id).copied() else { return Err(Full::All) };
        match stage {
            Stage::Settled => return Ok(()),
            Stage::Leaving => return Err(Full::All),
            Stage::Pending => self.room(source)?,
        }
        self.seats.insert(id, (source, Stage::Settled));
        self.pending -= 1;
        self.count(source);
        Ok(())
    }

    fn count(&mut self, source: Source) {
        self.settled += 1;
        self.local += usize::from(source == Source::Local);
        *self.own.entry(source).or_insert(0) += 1;
    }

    /// Removes a connection that has ended.
    pub fn leave(&mut self, id: u64) {
        match self.seats.remove(&id) {
            None => {}
            Some((_, Stage::Pending)) => self.pending -= 1,
            Some((_, Stage::Leaving)) => self.leaving -= 1,
            Some((source, Stage::Settled)) => {
                self.settled -= 1;
                self.local -= usize::from(source == Source::Local);
                let left = self.own.get(&source).map_or(0, |own| own - 1);
                match left {
                    0 => self.own.remove(&source),
                    left => self.own.insert(source, left),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u8) -> Source {
        Source::of([10, 0, 0, n].into())
    }

    #[test]
    fn a_network_of_ipv6_is_one_party() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:10.0.0.1"), v4(1));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn one_address_gets_its_share() {
        let mut all = Admission::new(Limits::new(8, 4, 0));
        for id in 0..4 {
            assert_eq!(all.enter(id, v4(1)), Ok(None));
            assert_eq!(all.settle(id), Ok(()));
            assert_eq!(all.settle(id), Ok(()), "again changes nothing");
        }
        assert_eq!(all.enter(4, v4(1)), Err(Full::Own));
        for id in 4..8 {
            assert_eq!(all.enter(id, v4(2)), Ok(None));
            assert_eq!(all.settle(id), Ok(()));
        }
        assert_eq!(all.enter(8, v4(3)), Err(Full::All));
        all.leave(0);
        all.leave(0);
        assert_eq!(all.enter(9, v4(1)), Ok(None));
        assert_eq!(all.settle(9), Ok(()));
    }

    #[test]
    fn each_kind_of_socket_has_its_reserve() {
        let mut all = Admission::new(Limits::new(8, 8, 2));
        for id in 0..6 {
            all.enter(id, v4(1)).unwrap();
            all.settle(id).unwrap();
        }
        assert_eq!(all.enter(6, v4(2)), Err(Full::All));
        for id in 6..8 {
            all.enter(id, Source::Local).unwrap();
            all.settle(id).unwrap();
        }
        assert_eq!(all.enter(8, Source::Local), Err(Full::All));
    }

    #[test]
    fn who_has_most_pending_connections_loses_its_oldest() {
        let mut all = Admission::new(Limits::new(16, 8, 0));
        all.enter(0, v4(1)).unwrap();
        for id in 1..4 {
            assert_eq!(all.enter(id, v4(2)), Ok(None));
        }
        assert_eq!(all.enter(4, v4(2)), Ok(Some(1)));
        assert_eq!(all.enter(5, v4(3)), Ok(Some(2)));
        assert_eq!(all.settle(2), Err(Full::All), "it has to go");
        assert_eq!(all.settle(0), Ok(()), "the quiet one was left alone");
        // Displaced connections that have not ended still count, so their number is limited.
        assert_eq!(all.enter(6, v4(2)), Ok(None));
        assert_eq!(all.enter(7, v4(2)), Ok(Some(3)));
        assert_eq!(all.enter(8, v4(2)), Ok(Some(4)));
        assert_eq!(all.enter(9, v4(4)), Err(Full::Leaving));
        all.leave(1);
        assert!(all.enter(10, v4(4)).is_ok());
        for id in 0..11 {
            all.leave(id);
        }
        assert_eq!((all.pending, all.leaving, all.settled, all.local), (0, 0, 0, 0));
        assert!(all.own.is_empty() && all.seats.is_empty());
    }

    /// The number of connections never exceeds the number of reserved file descriptors.
    #[test]
    fn the_sum_is_bounded() {
        let limits = Limits::new(32, 16, 4);
        let mut all = Admission::new(limits);
        let mut rng = 0x2545_f491_4f6c_dd1du64;
        for id in 0..20_000 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            let source = if rng % 7 == 0 { Source::Local } else { v4((rng >> 8) as u8 % 3) };
            let _ = all.enter(id, source);
            let some = id.saturating_sub((rng >> 16) % 64);
            match (rng >> 24) % 5 {
                0 | 1 => drop(all.settle(some)),
                2 => all.leave(some),
                _ => {}
            }
            assert!(all.seats.len() <= descriptors(32));
            assert!(all.settled <= 32 && all.pending <= limits.pending);
        }
    }
}
