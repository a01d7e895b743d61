//! What clients do now: a thread samples the counters once a second.

use crate::activity::Sample;
use crate::app::App;
use crate::moments::volume_of;
use crate::periodic::Worker;
use hindcast_api::Live;
use hindcast_target::iscsi::SessionClient;
use hindcast_target::nbd::ConnectionInfo;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_secs(1);

impl App {
    fn sample(&self, clients: &mut SeenClients) {
        let time = Timestamp::now();
        let volumes = self.pool.volume_counters();
        let exists: BTreeSet<Uuid> = volumes.iter().map(|(id, _)| *id).collect();
        self.latencies.retain(|id| exists.contains(id));
        self.last_changes.look(&volumes, time);
        let connections = self.nbd.connections();
        let flying = self.in_flight(&connections);
        clients.tell(present(connections, self.iscsi.clients()), Instant::now());
        let sample = Sample { stats: &volumes, flying: &flying, time };
        let (pool, rates) = self.sampler.add(&sample, |wanted| self.latencies.read(wanted));
        let names = if rates.is_empty() { Vec::new() } else { self.pool.volumes() };
        let volumes = names.into_iter().filter_map(|v| Some((v.name, *rates.get(&v.uuid)?))).collect();
        self.sampler.publish(Live { time, pool, volumes });
    }

    /// Returns the number of NBD requests under way, by volume. Those of snapshots and moments
    /// count to their volume.
    fn in_flight(&self, connections: &[ConnectionInfo]) -> BTreeMap<Uuid, u64> {
        let mut counts = BTreeMap::new();
        for connection in connections.iter().filter(|connection| connection.traffic.in_flight > 0) {
            let export = connection.export.as_deref().unwrap_or_default();
            if let Ok(info) = self.pool.volume(volume_of(export)) {
                *counts.entry(info.uuid).or_insert(0) += connection.traffic.in_flight;
            }
        }
        counts
    }
}

/// A client that uses something.
#[derive(Debug)]
enum Present {
    /// An export of NBD.
    Nbd { export: String, peer: String },
    /// A target of iSCSI.
    Iscsi(SessionClient),
}

/// The number of a client, by which it has an identity in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Number {
    Nbd(u64),
    Iscsi(u16),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Nbd(id) => write!(f, "nbd-{id}"),
            Number::Iscsi(tsih) => write!(f, "iscsi-{tsih}"),
        }
    }
}

impl Present {
    /// Returns the export or the target.
    fn used(&self) -> &str {
        match self {
            Present::Nbd { export, .. } => export,
            Present::Iscsi(session) => &session.target,
        }
    }

    /// Returns whether this is the same client as one that had the same number. A session may get
    /// the number of one that has ended.
    fn is(&self, other: &Present) -> bool {
        match (self, other) {
            (Present::Iscsi(one), Present::Iscsi(other)) => one.initiator == other.initiator,
            _ => true,
        }
    }

    fn tell_that_it_came(&self, client: Number) {
        match self {
            Present::Nbd { export, peer } => {
                tracing::info!(event = "client.connected", export, %client, peer, "an NBD client connected");
            }
            Present::Iscsi(SessionClient { initiator, target, peers, .. }) => {
                let peer = peers.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
                tracing::info!(
                    event = "client.connected",
                    target,
                    %client,
                    initiator,
                    peer,
                    "an iSCSI initiator logged in"
                );
            }
        }
    }

    fn tell_that_it_left(&self, client: Number) {
        match self {
            Present::Nbd { export, .. } => {
                tracing::info!(event = "client.left", export, %client, "an NBD client left");
            }
            Present::Iscsi(SessionClient { initiator, target, .. }) => {
                tracing::info!(event = "client.left", target, %client, initiator, "an iSCSI initiator left");
            }
        }
    }
}

/// Returns the clients that use something. A client that only lists exports or targets does not.
fn present(connections: Vec<ConnectionInfo>, sessions: Vec<SessionClient>) -> BTreeMap<Number, Present> {
    let over_nbd = connections.into_iter().filter_map(|connection| {
        let ConnectionInfo { id, peer, export, .. } = connection;
        Some((Number::Nbd(id), Present::Nbd { export: export?, peer }))
    });
    let over_iscsi =
        sessions.into_iter().map(|session| (Number::Iscsi(session.tsih), Present::Iscsi(session)));
    over_nbd.chain(over_iscsi).collect()
}

/// The clients that were there at the last look, and what was told of them.
///
/// A client may come and go as often as it likes, so the events of each volume and target are
/// limited. Those beyond the limit are counted, and told of in one event.
#[derive(Default)]
struct SeenClients {
    /// `None` before the first look.
    known: Option<BTreeMap<Number, Present>>,
    told: BTreeMap<String, Told>,
}

/// What was told of one volume's clients.
struct Told {
    /// Number of events that may follow now.
    left: u32,
    /// Time at which `left` last grew.
    filled: Instant,
    /// Time of the last event that told of a number of clients.
    folded: Option<Instant>,
    came: u64,
    left_count: u64,
}

/// Number of events of one volume's clients in a row.
const BURST: u32 = 20;
/// Time after which one more event of a volume's clients may follow.
const REFILL: Duration = Duration::from_secs(60);
/// Time between two events that tell of a number of clients.
const FOLDED: Duration = Duration::from_secs(600);

impl SeenClients {
    /// Makes events of clients that came or went since the last look. Those that stayed for less
    /// than a second are not seen.
    fn tell(&mut self, here: BTreeMap<Number, Present>, now: Instant) {
        let before = self.known.take();
        let stays = |of: &BTreeMap<Number, Present>, number: &Number, client: &Present| {
            of.get(number).is_some_and(|other| other.is(client))
        };
        if let Some(before) = &before {
            for (number, came) in here.iter().filter(|(number, came)| !stays(before, number, came)) {
                match self.told(came.used(), now) {
                    Some(told) => told.came += 1,
                    None => came.tell_that_it_came(*number),
                }
            }
        }
        for (number, gone) in
            before.into_iter().flatten().filter(|(number, gone)| !stays(&here, number, gone))
        {
            match self.told(gone.used(), now) {
                Some(told) => told.left_count += 1,
                None => gone.tell_that_it_left(number),
            }
        }
        self.known = Some(here);
        self.tell_of_many(now);
    }

    /// Takes the place of one event about an export. Returns what counts it if there is no place.
    fn told(&mut self, export: &str, now: Instant) -> Option<&mut Told> {
        let new = || Told { left: BURST, filled: now, folded: None, came: 0, left_count: 0 };
        let told = self.told.entry(volume_of(export).to_owned()).or_insert_with(new);
        if told.left == 0 {
            return Some(told);
        }
        told.left -= 1;
        None
    }

    /// Tells how many clients came and went beyond the limits, and refills the limits.
    fn tell_of_many(&mut self, now: Instant) {
        self.told.retain(|volume, told| {
            while told.left < BURST && now.duration_since(told.filled) >= REFILL {
                (told.left, told.filled) = (told.left + 1, told.filled + REFILL);
            }
            let many = told.came + told.left_count > 0;
            if many && told.folded.is_none_or(|at| now.duration_since(at) >= FOLDED) {
                let (came, left) = (std::mem::take(&mut told.came), std::mem::take(&mut told.left_count));
                tracing::info!(event = "client.many", volume, came, left, "more clients came and left");
                told.folded = Some(now);
            }
            let is_new = told.left == BURST && told.came + told.left_count == 0;
            !is_new
        });
    }
}

/// Starts the thread that samples.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    let mut clients = SeenClients::default();
    Worker::start("live", INTERVAL, move || app.sample(&mut clients))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Collector, Events, only};
    use hindcast_target::nbd::Traffic;
    use tracing_subscriber::prelude::*;

    #[test]
    fn clients_that_come_and_go_make_few_events() {
        let events = Events::new();
        let collector = Collector(events.clone()).with_filter(only());
        let client = |id, export: &str| ConnectionInfo {
            id,
            peer: "p".into(),
            age: Duration::ZERO,
            read_only: false,
            tls: false,
            common_name: None,
            user: None,
            export: Some(export.into()),
            traffic: Traffic::default(),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(collector), || {
            let (mut clients, begin) = (SeenClients::default(), Instant::now());
            clients.tell(BTreeMap::new(), begin);
            for second in 1..=3600 {
                // A client of another moment each second.
                let flapping = client(second, &format!("db@lsn:{second}"));
                clients.tell(present(vec![flapping], Vec::new()), begin + Duration::from_secs(second));
            }
            clients.tell(present(vec![client(5000, "other")], Vec::new()), begin + Duration::from_secs(3601));
            assert!(clients.told.len() == 2, "by volume, not by moment");
        });
        let found = events.newest(None, 10_000);
        assert!((60..110).contains(&found.len()), "{}", found.len());
        assert!(found[0].message.contains("other") || found[0].subject.as_deref() == Some("other"));
        let many: Vec<&str> = found
            .iter()
            .filter(|event| event.kind == "client.many")
            .map(|event| event.message.as_str())
            .collect();
        assert!((5..8).contains(&many.len()), "{many:?}");
        let told = found.iter().filter(|e| e.kind != "client.many").count() as u64;
        let count = |word: &str| -> u64 {
            let of = many.iter().filter_map(|text| text.split(&format!("{word} ")).nth(1)?.split(',').next());
            of.map(|number| number.trim().parse::<u64>().unwrap()).sum()
        };
        assert!(told + count(", came") + count(", left") > 6000, "{told} {many:?}");
    }

    #[test]
    fn log_ins_and_log_outs_of_initiators_are_events() {
        let events = Events::new();
        let collector = Collector(events.clone()).with_filter(only());
        let session = |tsih, initiator: &str| SessionClient {
            tsih,
            initiator: initiator.into(),
            target: "iqn.t:db".into(),
            peers: vec![SocketAddr::from(([10, 0, 0, 1], 49_000)), SocketAddr::from(([10, 0, 1, 1], 49_001))],
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(collector), || {
            let (mut clients, now) = (SeenClients::default(), Instant::now());
            clients.tell(BTreeMap::new(), now);
            clients.tell(present(Vec::new(), vec![session(2, "iqn.x:a")]), now);
            clients.tell(present(Vec::new(), vec![session(2, "iqn.x:a")]), now);
            // Another initiator has the number of the session that has ended.
            clients.tell(present(Vec::new(), vec![session(2, "iqn.x:b")]), now);
            clients.tell(BTreeMap::new(), now);
        });
        let told: Vec<(String, String)> =
            events.newest(None, 10).into_iter().rev().map(|event| (event.kind, event.message)).collect();
        let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["client.connected", "client.connected", "client.left", "client.left"]);
        assert!(told[0].1.contains("logged in") && told[0].1.contains("iqn.x:a"), "{told:?}");
        assert!(told[3].1.contains("iqn.x:b"), "{told:?}");
    }
}
