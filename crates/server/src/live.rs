//! What clients do now: a thread samples the counters once a second.

use crate::activity::Sample;
use crate::app::App;
use crate::moments::volume_of;
use crate::periodic::Worker;
use hindcast_api::Live;
use hindcast_target::iscsi::SessionInfo;
use hindcast_target::nbd::ConnectionInfo;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_secs(1);

impl App {
    fn sample(&self, clients: &mut SeenClients) {
        let time = Timestamp::now();
        let volumes = self.pool.volume_counters();
        let exists: BTreeSet<Uuid> = volumes.iter().map(|(id, _)| *id).collect();
        self.latencies.retain(|id| exists.contains(id));
        let connections = self.nbd.connections();
        clients.tell(present(&connections, &self.iscsi.sessions()), Instant::now());
        let flying = self.in_flight(&connections);
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

/// A client that uses something: an export of NBD, or a target of iSCSI.
#[derive(Debug, Clone)]
struct Present {
    /// Its identity in the API.
    client: String,
    /// The export or the target.
    used: String,
    peer: String,
    initiator: Option<String>,
}

/// Returns the clients that use something. A client that only lists exports or targets does not.
fn present(connections: &[ConnectionInfo], sessions: &[SessionInfo]) -> Vec<Present> {
    let over_nbd = connections.iter().filter_map(|connection| {
        let (client, used) = (format!("nbd-{}", connection.id), connection.export.clone()?);
        Some(Present { client, used, peer: connection.peer.clone(), initiator: None })
    });
    let over_iscsi = sessions.iter().filter_map(|session| {
        let peers: Vec<String> = session.connections.iter().map(|c| c.peer.to_string()).collect();
        Some(Present {
            client: format!("iscsi-{}", session.tsih),
            used: session.target.clone()?,
            peer: peers.join(" "),
            initiator: Some(session.initiator.clone()),
        })
    });
    over_nbd.chain(over_iscsi).collect()
}

/// The clients that were there at the last look, and what was told of them.
///
/// A client may come and go as often as it likes, so the events of each volume and target are
/// limited. Those beyond the limit are counted, and told of in one event.
#[derive(Default)]
struct SeenClients {
    /// The clients, by identity and initiator: a session may get the number of one that has ended.
    /// `None` before the first look.
    known: Option<BTreeMap<(String, Option<String>), Present>>,
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
    fn tell(&mut self, clients: Vec<Present>, now: Instant) {
        let key = |client: &Present| (client.client.clone(), client.initiator.clone());
        let here: BTreeMap<_, Present> = clients.into_iter().map(|client| (key(&client), client)).collect();
        let before = self.known.take();
        for client in here.values().filter(|_| before.is_some()) {
            if before.as_ref().is_some_and(|before| before.contains_key(&key(client))) {
                continue;
            }
            if let Some(told) = self.told(&client.used, now) {
                told.came += 1;
                continue;
            }
            let Present { client, used, peer, initiator } = client;
            match initiator {
                None => {
                    tracing::info!(
                        event = "client.connected",
                        export = used,
                        client,
                        peer,
                        "an NBD client connected"
                    );
                }
                Some(initiator) => {
                    tracing::info!(
                        event = "client.connected",
                        target = used,
                        client,
                        initiator,
                        peer,
                        "an iSCSI initiator logged in"
                    );
                }
            }
        }
        for (_, gone) in before.into_iter().flatten().filter(|(key, _)| !here.contains_key(key)) {
            if let Some(told) = self.told(&gone.used, now) {
                told.left_count += 1;
                continue;
            }
            let Present { client, used, initiator, .. } = gone;
            match initiator {
                None => tracing::info!(event = "client.left", export = used, client, "an NBD client left"),
                Some(initiator) => {
                    tracing::info!(
                        event = "client.left",
                        target = used,
                        client,
                        initiator,
                        "an iSCSI initiator left"
                    );
                }
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
            clients.tell(Vec::new(), begin);
            for second in 1..=3600 {
                // A client of another moment each second.
                let flapping = client(second, &format!("db@lsn:{second}"));
                clients.tell(present(&[flapping], &[]), begin + Duration::from_secs(second));
            }
            clients.tell(present(&[client(5000, "other")], &[]), begin + Duration::from_secs(3601));
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
        let session = |tsih, initiator: &str, target: Option<&str>| SessionInfo {
            tsih,
            initiator: initiator.into(),
            initiator_alias: None,
            isid: [0; 6],
            target: target.map(str::to_owned),
            portal_group: 1,
            user: None,
            nexus: std::sync::Weak::new(),
            age: Duration::ZERO,
            in_flight: 0,
            keys: Vec::new(),
            connections: Vec::new(),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(collector), || {
            let (mut clients, now) = (SeenClients::default(), Instant::now());
            clients.tell(Vec::new(), now);
            let discovery = session(1, "iqn.x:a", None);
            clients.tell(present(&[], &[discovery, session(2, "iqn.x:a", Some("iqn.t:db"))]), now);
            // Another initiator has the number of the session that has ended.
            clients.tell(present(&[], &[session(2, "iqn.x:b", Some("iqn.t:db"))]), now);
            clients.tell(Vec::new(), now);
        });
        let told: Vec<(String, String)> =
            events.newest(None, 10).into_iter().rev().map(|event| (event.kind, event.message)).collect();
        let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["client.connected", "client.connected", "client.left", "client.left"]);
        assert!(told[0].1.contains("logged in") && told[0].1.contains("iqn.x:a"), "{told:?}");
        assert!(told[3].1.contains("iqn.x:b"), "{told:?}");
    }
}
