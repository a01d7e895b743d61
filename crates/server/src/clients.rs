//! The clients that use the volumes now, over both protocols.

use crate::app::App;
use crate::moments::volume_of;
use hindcast_api::{ConnectedClient, Protocol, Target, TargetSession};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::nbd::{Command, ConnectionInfo};
use std::collections::{BTreeMap, BTreeSet};

/// The identity of a client in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Id {
    Nbd(u64),
    Iscsi(u16),
}

impl Id {
    fn parse(text: &str) -> Option<Id> {
        let (protocol, number) = text.split_once('-')?;
        match protocol {
            "nbd" => number.parse().ok().map(Id::Nbd),
            "iscsi" => number.parse().ok().map(Id::Iscsi),
            _ => None,
        }
    }
}

impl App {
    /// Returns the clients of both protocols, NBD first, by age.
    pub(crate) fn clients(&self) -> Vec<ConnectedClient> {
        let mut clients: Vec<ConnectedClient> =
            self.nbd.connections().iter().map(|connection| self.over_nbd(connection)).collect();
        for target in self.iscsi.targets() {
            clients.extend(target.sessions.iter().map(|session| over_iscsi(&target, session)));
        }
        clients.sort_by_key(|client| (client.protocol == Protocol::Iscsi, std::cmp::Reverse(client.age)));
        clients
    }

    /// Returns the number of clients of each volume that has any. Clients of its snapshots and
    /// moments count.
    pub(crate) fn clients_by_volume(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for client in self.clients() {
            let volumes: BTreeSet<&str> = client.exports.iter().map(|export| volume_of(export)).collect();
            for volume in volumes {
                *counts.entry(volume.to_owned()).or_insert(0) += 1;
            }
        }
        counts
    }

    /// Ends the connection or session of a client. It may connect again, if the rules let it.
    pub(crate) fn disconnect_client(&self, id: &str) -> Result<()> {
        let ended = match Id::parse(id) {
            Some(Id::Nbd(number)) => self.nbd.end(number),
            Some(Id::Iscsi(tsih)) => self.iscsi.end_session(tsih),
            None => false,
        };
        if !ended {
            let text = format!("disconnect client {id}: it is not connected; see `hindcast clients list`");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        tracing::info!(event = "client.disconnected", client = id, "client disconnected by request");
        Ok(())
    }

    fn over_nbd(&self, connection: &ConnectionInfo) -> ConnectedClient {
        let traffic = &connection.traffic;
        ConnectedClient {
            id: format!("nbd-{}", connection.id),
            protocol: Protocol::Nbd,
            addresses: vec![connection.peer.clone()],
            initiator: None,
            user: None,
            tls: connection.tls,
            certificate: connection.common_name.as_ref().map(|name| format!("CN={name}")),
            unix_user: connection.user.map(|uid| self.callers.user_name(uid)),
            writable: connection.export.is_some().then_some(!connection.read_only),
            exports: connection.export.iter().cloned().collect(),
            age: connection.age.as_secs(),
            requests: Command::ALL.iter().map(|command| traffic.requests_of(*command)).sum(),
            reads: traffic.requests_of(Command::Read),
            writes: traffic.requests_of(Command::Write),
            read_bytes: traffic.bytes_read,
            write_bytes: traffic.bytes_written,
            in_flight: Some(traffic.in_flight),
        }
    }
}

fn over_iscsi(target: &Target, session: &TargetSession) -> ConnectedClient {
    let seen = target.luns.iter().filter(|lun| session.luns.contains(&lun.lun));
    ConnectedClient {
        id: format!("iscsi-{}", session.tsih),
        protocol: Protocol::Iscsi,
        addresses: session.addresses.clone(),
        initiator: Some(session.initiator.clone()),
        user: session.user.clone(),
        tls: false,
        certificate: None,
        unix_user: None,
        writable: Some(!session.read_only),
        exports: seen.map(|lun| lun.source.clone()).collect(),
        age: session.age,
        requests: session.commands,
        reads: session.reads,
        writes: session.writes,
        read_bytes: session.read_bytes,
        write_bytes: session.write_bytes,
        in_flight: Some(session.in_flight),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_name_the_protocol() {
        assert_eq!(Id::parse("nbd-7"), Some(Id::Nbd(7)));
        assert_eq!(Id::parse("iscsi-3"), Some(Id::Iscsi(3)));
        for bad in ["", "7", "nbd", "nbd-", "nbd--1", "iscsi-65536", "tcp-1"] {
            assert_eq!(Id::parse(bad), None, "{bad}");
        }
    }
}
