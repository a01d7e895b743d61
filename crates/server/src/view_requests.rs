//! Requests about views: their creation, leases and ends.

use crate::app::App;
use crate::clones::clone_behind;
use crate::convert::time;
use crate::moments::{self, Past};
use crate::periodic::Worker;
use crate::views::{StoredView, not_found};
use crate::world;
use hindcast_api::{CreateView, LONGEST_VIEW_LEASE, PatchView, VIEW_LEASE, View, ViewCommand};
use hindcast_engine::pool::VolumeInfo;
use hindcast_engine::{Error, ErrorKind, Result, cdp};
use jiff::{SignedDuration, Timestamp};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two searches for leases that ended.
const INTERVAL: Duration = Duration::from_secs(15);
const SHORTEST_LEASE: u64 = 60;
const LONGEST_NAME: usize = 128;

impl App {
    /// Returns all views, oldest first.
    pub(crate) fn list_views(&self) -> Result<Vec<View>> {
        let volumes = self.pool.volumes();
        let of = |view: &StoredView| volumes.iter().find(|volume| volume.uuid == view.volume);
        let shown = |view: StoredView| of(&view).map(|volume| self.shown_view(&view, volume));
        Ok(self.views.all()?.into_iter().filter_map(shown).collect())
    }

    /// Returns one view.
    pub(crate) fn view(&self, id: &str) -> Result<View> {
        self.list_views()?.into_iter().find(|view| view.id == id).ok_or_else(|| not_found(id))
    }

    /// Creates a view of a moment or snapshot.
    pub(crate) fn create_view(&self, volume: &str, new: &CreateView) -> Result<View> {
        let expires = lease(new.lease_seconds)?;
        if new.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > LONGEST_NAME) {
            return Err(invalid(format!("create a view: its name must have 1 to {LONGEST_NAME} bytes")));
        }
        let info = self.pool.volume(volume)?;
        let (moment, lsn, at, size) = self.past_of(volume, new)?;
        let (pin, moment) = moments::open_frozen(&self.pool, volume, &moment)?;
        let (id, _) = world::uuid().as_u64_pair();
        let view = StoredView {
            id: format!("{:010x}", id >> 24),
            volume: info.uuid,
            name: new.name.clone(),
            moment,
            lsn,
            time: at,
            size,
            created: Timestamp::now(),
            expires,
        };
        self.views.add(view.clone(), pin)?;
        tracing::info!(event = "view.created", volume, view = view.id, moment = view.moment, "view created");
        Ok(self.shown_view(&view, &info))
    }

    /// Finds the content of a view: the text after the `@` of its address, its LSN, time and size.
    fn past_of(&self, volume: &str, new: &CreateView) -> Result<(String, Option<u64>, Timestamp, u64)> {
        let found = moments::find(&self.pool, volume, &new.moment)?;
        if let Past::Snapshot(snapshot) = &found
            && !new.last_flush
        {
            let address = format!("{volume}@{}", snapshot.name);
            if clone_behind(&self.pool, snapshot).is_some() {
                let text =
                    format!("create a view of {address}: the snapshot is writable; open that address itself");
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            return Ok((snapshot.name.clone(), None, time(snapshot.created), snapshot.size));
        }
        let moment = match found {
            Past::Snapshot(snapshot) => {
                cdp::Moment::Lsn(self.pool.moment_of_snapshot(volume, &snapshot.name)?)
            }
            Past::Moment(moment) => moment,
        };
        let moment = match new.last_flush {
            true => moments::last_flush(&self.pool, volume, moment)?,
            false => moment,
        };
        let point = self.pool.resolve(volume, &moment)?;
        Ok((format!("lsn:{}", point.lsn), Some(point.lsn.0), time(point.time), point.size))
    }

    /// Gives a view a new lease.
    pub(crate) fn renew_view(&self, id: &str, patch: &PatchView) -> Result<View> {
        self.views.renew(id, lease(patch.lease_seconds)?)?;
        self.view(id)
    }

    /// Ends a view. Clients that use its address are disconnected.
    pub(crate) fn end_view(&self, id: &str, cause: &str) -> Result<()> {
        let view = self.view(id)?;
        self.views.remove(id)?;
        if !self.list_views()?.iter().any(|other| other.address == view.address) {
            self.nbd.disconnect(&view.address);
        }
        tracing::info!(event = "view.ended", volume = view.volume, view = id, cause, "view ended");
        Ok(())
    }

    fn shown_view(&self, view: &StoredView, volume: &VolumeInfo) -> View {
        let address = format!("{}@{}", volume.name, view.moment);
        let clients = self.clients().iter().filter(|client| client.exports.contains(&address)).count();
        let nbd: Vec<String> = self.nbd.addresses().iter().map(|at| nbd_uri(at, &address)).collect();
        let target = self.iscsi.name_of_past(volume, &view.moment, view.lsn);
        let iscsi: Vec<String> = match target {
            Some(target) => self.iscsi.addresses().iter().map(|at| iscsi_url(at, &target)).collect(),
            None => Vec::new(),
        };
        View {
            id: view.id.clone(),
            volume: volume.name.clone(),
            name: view.name.clone(),
            lsn: view.lsn,
            time: view.time,
            size: view.size,
            created: view.created,
            expires: view.expires,
            clients: clients as u64,
            commands: commands(nbd.first(), iscsi.first()),
            address,
            nbd,
            iscsi,
        }
    }

    /// Ends the views whose lease has ended and that no client uses.
    fn end_unused_views(&self) -> Result<()> {
        let now = Timestamp::now();
        for view in self.list_views()?.into_iter().filter(|view| view.expires <= now && view.clients == 0) {
            self.end_view(&view.id, "lease")?;
        }
        Ok(())
    }
}

/// Starts the thread that ends views.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    Worker::start("views", INTERVAL, move || {
        if let Err(error) = app.end_unused_views() {
            tracing::debug!(%error, "views whose lease has ended stay");
        }
    })
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Returns the end of a lease that begins now.
fn lease(seconds: Option<u64>) -> Result<Timestamp> {
    let seconds = seconds.unwrap_or(VIEW_LEASE);
    if !(SHORTEST_LEASE..=LONGEST_VIEW_LEASE).contains(&seconds) {
        return Err(invalid(format!(
            "keep a view for {seconds} s: a lease has {SHORTEST_LEASE} to {LONGEST_VIEW_LEASE} seconds"
        )));
    }
    let end = Timestamp::now().checked_add(SignedDuration::from_secs(seconds.cast_signed()));
    end.map_err(|_| invalid(format!("keep a view for {seconds} s: the clock can't show the end")))
}

/// Returns the URI of an export at a listener.
fn nbd_uri(listener: &str, export: &str) -> String {
    match listener.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///{export}?socket={}", escaped(path)),
        None => format!("nbd://{listener}/{export}"),
    }
}

fn escaped(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-' | b'~');
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Returns the URL of a target's only LUN at a portal.
fn iscsi_url(portal: &str, target: &str) -> String {
    let portal = portal.split_once('/').map_or(portal, |(address, _)| address);
    format!("iscsi://{portal}/{target}/0")
}

/// Returns commands that use a view.
fn commands(nbd: Option<&String>, iscsi: Option<&String>) -> Vec<ViewCommand> {
    let mut all = Vec::new();
    let mut add = |system: &str, command: String| all.push(ViewCommand { system: system.into(), command });
    if let Some(uri) = nbd {
        add("qemu-img", format!("qemu-img convert -f raw -O qcow2 '{uri}' view.qcow2"));
        add("Linux, a file (nbdfuse)", format!("nbdfuse --readonly /mnt/view '{uri}'"));
        add("Linux, a copy (nbdcopy)", format!("nbdcopy '{uri}' view.img"));
    }
    let parts = iscsi.and_then(|url| url.strip_prefix("iscsi://")).and_then(|url| url.split_once('/'));
    if let Some((portal, target)) = parts {
        let target = target.trim_end_matches("/0");
        add(
            "Linux, a disk (open-iscsi)",
            format!(
                "iscsiadm -m node -T {target} -p {portal} -o new && iscsiadm -m node -T {target} -p {portal} --login"
            ),
        );
        add(
            "Windows",
            format!("iscsicli AddTarget {target} * {} * 0 * * * * * * * * * 0", portal.replace(':', " ")),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_complete() {
        assert_eq!(nbd_uri("unix:/a b/nbd.sock", "db@lsn:7"), "nbd+unix:///db@lsn:7?socket=/a%20b/nbd.sock");
        assert_eq!(nbd_uri("127.0.0.1:10809", "db@lsn:7"), "nbd://127.0.0.1:10809/db@lsn:7");
        assert_eq!(
            iscsi_url("127.0.0.1:3260/2", "iqn.x:db:at:lsn:7"),
            "iscsi://127.0.0.1:3260/iqn.x:db:at:lsn:7/0"
        );
        let all = commands(Some(&"nbd://h/e".into()), Some(&"iscsi://h:3260/iqn.x:db:at:lsn:7/0".into()));
        assert_eq!(all.len(), 5);
        assert!(all[3].command.contains("-T iqn.x:db:at:lsn:7 -p h:3260 --login"), "{}", all[3].command);
        assert!(commands(None, None).is_empty());
    }

    #[test]
    fn leases_are_bounded() {
        assert!(lease(None).is_ok() && lease(Some(60)).is_ok());
        for bad in [0, 59, LONGEST_VIEW_LEASE + 1, u64::MAX] {
            assert_eq!(lease(Some(bad)).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
