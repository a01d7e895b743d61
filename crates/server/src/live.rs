//! What clients do now: a thread samples the counters once a second.

use crate::activity::Counters;
use crate::app::App;
use crate::periodic::Worker;
use hindcast_api::Live;
use hindcast_target::nbd::ConnectionInfo;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_secs(1);

impl App {
    fn sample(&self, known: &mut Option<BTreeMap<u64, String>>) {
        let time = Timestamp::now();
        let volumes = self.pool.volume_counters();
        let exists: BTreeSet<Uuid> = volumes.iter().map(|(id, _)| *id).collect();
        self.latencies.retain(|id| exists.contains(id));
        let mut times = self.latencies.read();
        let connections = self.nbd.connections();
        tell_of_clients(&connections, known);
        let flying = self.in_flight(&connections);
        let counters = |(id, stats)| (id, Counters { stats, times: times.remove(&id).unwrap_or_default() });
        let all = volumes.into_iter().map(counters).collect();
        let (pool, rates) = self.sampler.add(all, &flying, time);
        let names = if rates.is_empty() { Vec::new() } else { self.pool.volumes() };
        let volumes = names.into_iter().filter_map(|v| Some((v.name, *rates.get(&v.uuid)?))).collect();
        self.sampler.publish(Live { time, pool, volumes });
    }

    /// Returns the number of NBD requests under way, by volume.
    fn in_flight(&self, connections: &[ConnectionInfo]) -> BTreeMap<Uuid, u64> {
        let mut counts = BTreeMap::new();
        for connection in connections.iter().filter(|connection| connection.traffic.in_flight > 0) {
            let export = connection.export.as_deref().unwrap_or_default();
            if let Ok(info) = self.pool.volume(export) {
                *counts.entry(info.uuid).or_insert(0) += connection.traffic.in_flight;
            }
        }
        counts
    }
}

/// Makes events of NBD clients that came or went since the last look. Those that stayed for less
/// than a second are not seen.
fn tell_of_clients(connections: &[ConnectionInfo], known: &mut Option<BTreeMap<u64, String>>) {
    // A client that only lists exports uses none.
    let using = |connection: &ConnectionInfo| Some((connection.id, connection.export.clone()?));
    let now: BTreeMap<u64, String> = connections.iter().filter_map(using).collect();
    let Some(before) = known.replace(now) else { return };
    for connection in connections.iter().filter(|connection| !before.contains_key(&connection.id)) {
        let (Some(export), peer) = (&connection.export, &connection.peer) else { continue };
        let client = format!("nbd-{}", connection.id);
        tracing::info!(event = "client.connected", export, client, peer, "an NBD client connected");
    }
    let gone = before.iter().filter(|(id, _)| !connections.iter().any(|connection| connection.id == **id));
    for (id, export) in gone {
        let client = format!("nbd-{id}");
        tracing::info!(event = "client.left", export, client, "an NBD client left");
    }
}

/// Starts the thread that samples.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    let mut known = None;
    Worker::start("live", INTERVAL, move || app.sample(&mut known))
}
