//! Requests about views: their creation, leases and ends.

use crate::app::App;
use crate::clones::clone_behind;
use crate::convert::time;
use crate::moments::{self, Past};
use crate::periodic::Worker;
use crate::views::{Shows, StoredView, not_found};
use crate::world;
use hindcast_api::{
    CreateView, LONGEST_VIEW_LEASE, PatchView, VIEW_LEASE, View, ViewCommand, percent_encoded,
};
use hindcast_engine::pool::VolumeInfo;
use hindcast_engine::{Error, ErrorKind, Result, cdp};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Interval between two searches for leases that ended.
const INTERVAL: Duration = Duration::from_secs(15);
const SHORTEST_LEASE: u64 = 60;
const LONGEST_NAME: usize = 128;

impl App {
    /// Returns all views, oldest first. A view whose snapshot was deleted is left out.
    pub(crate) fn list_views(&self) -> Result<Vec<View>> {
        self.shown_views(|_| true)
    }

    /// Returns one view.
    pub(crate) fn view(&self, id: &str) -> Result<View> {
        self.shown_views(|view| view.id == id)?.pop().ok_or_else(|| not_found(id))
    }

    /// Returns the name of the volume of a view. `None`: there is no such view or volume.
    pub(crate) fn volume_of_view(&self, id: &str) -> Option<String> {
        let volume = self.views.all().ok()?.into_iter().find(|view| view.id == id)?.volume;
        self.pool.volumes().into_iter().find(|info| info.uuid == volume).map(|info| info.name)
    }

    /// Returns views as the API has them. What all of them need is looked up once.
    fn shown_views(&self, wanted: impl Fn(&StoredView) -> bool) -> Result<Vec<View>> {
        let views: Vec<StoredView> = self.views.all()?.into_iter().filter(wanted).collect();
        if views.is_empty() {
            return Ok(Vec::new());
        }
        let volumes: BTreeMap<Uuid, VolumeInfo> =
            self.pool.volumes().into_iter().map(|volume| (volume.uuid, volume)).collect();
        let mut used: BTreeMap<String, u64> = BTreeMap::new();
        for export in self.clients().into_iter().flat_map(|client| client.exports) {
            *used.entry(export).or_insert(0) += 1;
        }
        let shown = |view: &StoredView| {
            let volume = volumes.get(&view.volume)?;
            let moment = view.shows.moment(&self.pool, &volume.name).ok().flatten()?;
            Some(self.shown_view(view, volume, moment, &used))
        };
        Ok(views.iter().filter_map(shown).collect())
    }

    /// Creates a view of a moment or snapshot.
    pub(crate) fn create_view(&self, volume: &str, new: &CreateView) -> Result<View> {
        let expires = lease(new.lease_seconds)?;
        if new.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > LONGEST_NAME) {
            return Err(invalid(format!("create a view: its name must have 1 to {LONGEST_NAME} bytes")));
        }
        let info = self.pool.volume(volume)?;
        let (moment, shows, at, size) = self.past_of(volume, new)?;
        let (pin, moment) = moments::open_frozen(&self.pool, volume, &moment)?;
        let (id, _) = world::uuid().as_u64_pair();
        let view = StoredView {
            id: format!("{:010x}", id >> 24),
            volume: info.uuid,
            name: new.name.clone(),
            shows,
            time: at,
            size,
            created: Timestamp::now(),
            expires,
        };
        self.views.add(view.clone(), pin)?;
        // The deletion of the volume ends its views. One that it did not see ends here.
        if self.pool.name_of(info.uuid).is_none() {
            self.views.remove_of(info.uuid)?;
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("create a view: volume {volume} was just deleted"),
            ));
        }
        tracing::info!(event = "view.created", volume, view = view.id, moment, "view created");
        self.view(&view.id)
    }

    /// Finds the content of a view: the text after the `@` of its address, what it shows, its time
    /// and size.
    fn past_of(&self, volume: &str, new: &CreateView) -> Result<(String, Shows, Timestamp, u64)> {
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
            let shows = Shows::Snapshot(snapshot.uuid);
            return Ok((snapshot.name.clone(), shows, time(snapshot.created), snapshot.size));
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
        Ok((format!("lsn:{}", point.lsn), Shows::Lsn(point.lsn.0), time(point.time), point.size))
    }

    /// Gives a view a new lease.
    pub(crate) fn renew_view(&self, id: &str, patch: &PatchView) -> Result<View> {
        self.views.renew(id, lease(patch.lease_seconds)?)?;
        self.view(id)
    }

    /// Ends a view. Clients that use its address are disconnected.
    pub(crate) fn end_view(&self, id: &str, cause: &str) -> Result<()> {
        let all = self.views.all()?;
        let ended = all.iter().find(|view| view.id == id).ok_or_else(|| not_found(id))?;
        // A view of a deleted snapshot is not shown, and ends all the same.
        let shown = self.view(id).ok();
        self.views.remove(id)?;
        self.file_readers.end_idle(&self.views);
        let is_same = |view: &StoredView| view.volume == ended.volume && view.shows == ended.shows;
        let is_shared = all.iter().any(|view| view.id != id && is_same(view));
        let volume = shown.as_ref().map_or("", |view| &view.volume);
        if let Some(view) = shown.as_ref().filter(|_| !is_shared) {
            self.nbd.disconnect(&view.address);
        }
        tracing::info!(event = "view.ended", volume, view = id, cause, "view ended");
        Ok(())
    }

    fn shown_view(
        &self,
        view: &StoredView,
        volume: &VolumeInfo,
        moment: String,
        used: &BTreeMap<String, u64>,
    ) -> View {
        let address = format!("{}@{moment}", volume.name);
        let lsn = match view.shows {
            Shows::Lsn(lsn) => Some(lsn),
            Shows::Snapshot(_) => None,
        };
        let nbd: Vec<String> = self.nbd.addresses().iter().map(|at| nbd_uri(at, &address)).collect();
        let target = self.iscsi.name_of_past(volume, &moment, lsn);
        let iscsi: Vec<String> = match target {
            Some(target) => self.iscsi.addresses().iter().map(|at| iscsi_url(at, &target)).collect(),
            None => Vec::new(),
        };
        View {
            id: view.id.clone(),
            volume: volume.name.clone(),
            name: view.name.clone(),
            lsn,
            time: view.time,
            size: view.size,
            created: view.created,
            expires: view.expires,
            clients: used.get(&address).copied().unwrap_or(0),
            commands: commands(nbd.first(), iscsi.first()),
            address,
            nbd,
            iscsi,
        }
    }

    /// Ends the views of volumes that were deleted and whose views could not be ended then.
    fn end_orphans(&self) -> Result<()> {
        let mut left: BTreeSet<Uuid> = self.views.all()?.into_iter().map(|view| view.volume).collect();
        if left.is_empty() {
            return Ok(());
        }
        self.pool.volumes().iter().for_each(|volume| _ = left.remove(&volume.uuid));
        left.into_iter().try_for_each(|volume| self.views.remove_of(volume))
    }

    /// Ends the views whose lease has ended and that no client uses.
    fn end_unused_views(&self) -> Result<()> {
        self.end_orphans()?;
        let now = Timestamp::now();
        // A clock that jumped tells nothing of leases, nor of retention.
        if self.pool.is_forgetting_suspended() || !self.views.all()?.iter().any(|view| view.expires <= now) {
            return Ok(());
        }
        let used: BTreeSet<String> = self
            .shown_views(|view| view.expires <= now)?
            .into_iter()
            .filter(|v| v.clients > 0 || self.file_readers.is_in_use(&v.id))
            .map(|v| v.id)
            .collect();
        let ended: Vec<StoredView> = self.views.all()?;
        let ended = ended.into_iter().filter(|view| view.expires <= now && !used.contains(&view.id));
        let ids: BTreeSet<String> = ended.map(|view| view.id).collect();
        self.views.remove_all(&ids)?;
        for id in ids {
            tracing::info!(event = "view.ended", view = id, cause = "lease", "view ended");
        }
        Ok(())
    }
}

/// Starts the thread that ends views.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    Worker::start("views", INTERVAL, move || {
        app.file_readers.end_idle(&app.views);
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
        Some(path) => format!("nbd+unix:///{export}?socket={}", percent_encoded(path, b"/")),
        None => format!("nbd://{listener}/{export}"),
    }
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
