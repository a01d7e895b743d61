//! What clients do now: a thread samples the counters once a second.

use crate::activity::Sample;
use crate::app::App;
use crate::moments::volume_of;
use crate::periodic::Worker;
use hindcast_api::Live;
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
        clients.tell(&connections, Instant::now());
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

/// The NBD clients that were there at the last look, and what was told of them.
///
/// A client may come and go as often as it likes, so the events of each volume are limited. Those
/// beyond the limit are counted, and told of in one event.
#[derive(Default)]
struct SeenClients {
    /// The exports of the connections. `None` before the first look.
    known: Option<BTreeMap<u64, String>>,
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
    fn tell(&mut self, connections: &[ConnectionInfo], now: Instant) {
        // A client that only lists exports uses none.
        let using = |connection: &ConnectionInfo| Some((connection.id, connection.export.clone()?));
        let here: BTreeMap<u64, String> = connections.iter().filter_map(using).collect();
        let Some(before) = self.known.replace(here) else { return };
        for connection in connections.iter().filter(|connection| !before.contains_key(&connection.id)) {
            let (Some(export), peer) = (&connection.export, &connection.peer) else { continue };
            if let Some(told) = self.told(export, now) {
                told.came += 1;
                continue;
            }
            let client = format!("nbd-{}", connection.id);
            tracing::info!(event = "client.connected", export, client, peer, "an NBD client connected");
        }
        let gone =
            before.iter().filter(|(id, _)| !connections.iter().any(|connection| connection.id == **id));
        for (id, export) in gone {
            if let Some(told) = self.told(export, now) {
                told.left_count += 1;
                continue;
            }
            let client = format!("nbd-{id}");
            tracing::info!(event = "client.left", export, client, "an NBD client left");
        }
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
                tracing::info!(event = "client.many", volume, came, left, "more NBD clients came and left");
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
            tls: false,
            export: Some(export.into()),
            traffic: Traffic::default(),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(collector), || {
            let (mut clients, begin) = (SeenClients::default(), Instant::now());
            clients.tell(&[], begin);
            for second in 1..=3600 {
                // A client of another moment each second.
                let flapping = client(second, &format!("db@lsn:{second}"));
                clients.tell(&[flapping], begin + Duration::from_secs(second));
            }
            clients.tell(&[client(5000, "other")], begin + Duration::from_secs(3601));
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
}
