//! Views: moments that the server keeps from expiring, each for as long as its lease runs or
//! clients use it.
//!
//! The data directory stores the views, by the UUIDs of their volumes. When the server starts, it
//! pins their moments again before anything can expire.

use crate::atomic_file::DurableFile;
use crate::moments;
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

const FILE: &str = "views.json";
const KIND: &str = "views";
const VERSION: u32 = 1;
/// Name, kind and version of the file of views.
pub(crate) const STORED: (&str, &str, u32) = (FILE, KIND, VERSION);
/// The largest number of views. Each pins a moment of a history.
pub(crate) const MAX_VIEWS: usize = 1000;
/// The largest number of views of one volume. A caller whose scope is one volume can't use up the
/// views of all.
const MAX_VIEWS_OF_VOLUME: usize = 200;

/// The content of a view. A name of a snapshot could become that of another one, so it is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shows {
    /// The moment of an LSN.
    Lsn(u64),
    /// The snapshot with this UUID.
    Snapshot(#[serde(with = "uuid_text")] Uuid),
}

impl Shows {
    /// Returns the text after the `@` of the address, or `None` if the snapshot is gone.
    pub(crate) fn moment(&self, pool: &Pool, volume: &str) -> Result<Option<String>> {
        match self {
            Shows::Lsn(lsn) => Ok(Some(format!("lsn:{lsn}"))),
            Shows::Snapshot(id) => {
                let found = pool.snapshots(volume)?.into_iter().find(|snapshot| snapshot.uuid == *id);
                Ok(found.map(|snapshot| snapshot.name))
            }
        }
    }
}

/// A view as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredView {
    pub(crate) id: String,
    #[serde(with = "uuid_text")]
    pub(crate) volume: Uuid,
    /// Name that the creator chose.
    pub(crate) name: Option<String>,
    /// What the view shows.
    pub(crate) shows: Shows,
    /// Time of the moment.
    pub(crate) time: Timestamp,
    /// Size of the volume at the moment, in bytes.
    pub(crate) size: u64,
    pub(crate) created: Timestamp,
    /// End of the lease.
    pub(crate) expires: Timestamp,
}

/// UUIDs in the file, as text.
mod uuid_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::try_parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A view and the handle that pins its moment.
#[derive(Clone)]
struct Held {
    stored: StoredView,
    pin: Option<Arc<Volume>>,
}

type HeldViews = BTreeMap<String, Held>;

/// All views, and the file that stores them.
pub(crate) struct Views {
    file: DurableFile,
    state: Mutex<Result<HeldViews>>,
}

fn encode(views: &[StoredView]) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(views)
        .map_err(|e| Error::with_source(ErrorKind::Invalid, format!("write {FILE}"), e))
}

fn decode(bytes: &[u8]) -> Result<Vec<StoredView>> {
    serde_json::from_slice(bytes).map_err(|e| Error::new(ErrorKind::Corrupt, format!("read {FILE}: {e}")))
}

/// Checks the content of the file of views.
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    decode(content).map(drop)
}

/// Returns the content of the file of views with new UUIDs of volumes. `identities` maps old UUIDs
/// to new ones.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut views = decode(content)?;
    for view in &mut views {
        view.volume = *identities.get(&view.volume).unwrap_or(&view.volume);
        if let Shows::Snapshot(id) = &mut view.shows {
            *id = *identities.get(id).unwrap_or(id);
        }
    }
    encode(&views)
}

impl Views {
    /// Reads the file of views in the data directory, and pins their moments. A view whose moment
    /// is gone is left out. The server also starts if the file can't be read. Requests about views
    /// then fail, and the file stays unchanged.
    pub(crate) fn open(dir: Arc<dyn Dir>, pool: &Arc<Pool>) -> Views {
        let file = DurableFile::new(dir, FILE, KIND, VERSION);
        let stored = file.load().and_then(|content| content.map_or_else(|| Ok(Vec::new()), |c| decode(&c)));
        if let Err(error) = &stored {
            tracing::error!(%error, "views can't be used");
        }
        let names: BTreeMap<Uuid, String> = pool.volumes().into_iter().map(|v| (v.uuid, v.name)).collect();
        let pin = |stored: StoredView| {
            let name = names.get(&stored.volume)?;
            let opened = stored.shows.moment(pool, name).and_then(|moment| match moment {
                Some(moment) => moments::open_frozen(pool, name, &moment).map(|(pin, _)| Some(pin)),
                None => Ok(None),
            });
            let pin = match opened {
                Ok(Some(pin)) => Some(pin),
                // The view stays without a pin, because the error may pass.
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(volume = name, view = stored.id, %error, "a view can't be opened now");
                    None
                }
                _ => {
                    tracing::warn!(
                        volume = name,
                        view = stored.id,
                        "the moment of a view is gone, and the view with it"
                    );
                    return None;
                }
            };
            Some((stored.id.clone(), Held { stored, pin }))
        };
        let state = stored.map(|views| views.into_iter().filter_map(pin).collect());
        Views { file, state: Mutex::new(state) }
    }

    /// Returns all views, oldest first.
    pub(crate) fn all(&self) -> Result<Vec<StoredView>> {
        let state = self.state.lock();
        let held = state.as_ref().map_err(Clone::clone)?;
        let mut views: Vec<StoredView> = held.values().map(|held| held.stored.clone()).collect();
        views.sort_by_key(|view| view.created);
        Ok(views)
    }

    /// Adds a view. `pin` is a handle of its moment.
    pub(crate) fn add(&self, view: StoredView, pin: Arc<Volume>) -> Result<()> {
        self.update(|views| {
            if views.len() >= MAX_VIEWS {
                let text = format!("create a view: there are {MAX_VIEWS} already; end some first");
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            if views.values().filter(|held| held.stored.volume == view.volume).count() >= MAX_VIEWS_OF_VOLUME
            {
                let text =
                    format!("create a view: the volume has {MAX_VIEWS_OF_VOLUME} already; end some first");
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            views.insert(view.id.clone(), Held { stored: view, pin: Some(pin) });
            Ok(())
        })
    }

    /// Returns the content of a view.
    pub(crate) fn content(&self, id: &str) -> Result<Arc<Volume>> {
        let state = self.state.lock();
        let held = state.as_ref().map_err(Clone::clone)?.get(id).ok_or_else(|| not_found(id))?;
        held.pin.clone().ok_or_else(|| {
            let text = format!("read view {id}: its moment could not be opened when the server started");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Sets the end of a view's lease.
    pub(crate) fn renew(&self, id: &str, expires: Timestamp) -> Result<()> {
        self.update(|views| {
            views.get_mut(id).ok_or_else(|| not_found(id))?.stored.expires = expires;
            Ok(())
        })
    }

    /// Ends a view.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        self.update(|views| views.remove(id).map(drop).ok_or_else(|| not_found(id)))
    }

    /// Ends views.
    pub(crate) fn remove_all(&self, ids: &BTreeSet<String>) -> Result<()> {
        self.update(|views| {
            views.retain(|id, _| !ids.contains(id));
            Ok(())
        })
    }

    /// Ends all views of a volume.
    pub(crate) fn remove_of(&self, volume: Uuid) -> Result<()> {
        if !self.all()?.iter().any(|view| view.volume == volume) {
            return Ok(());
        }
        self.update(|views| {
            views.retain(|_, held| held.stored.volume != volume);
            Ok(())
        })
    }

    /// Changes the views. When this returns, the change survives a power loss.
    fn update(&self, change: impl FnOnce(&mut HeldViews) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mut next = state.clone()?;
        change(&mut next)?;
        self.file.save(&encode(&next.values().map(|held| held.stored.clone()).collect::<Vec<_>>())?)?;
        *state = Ok(next);
        Ok(())
    }
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("find view {id}: it does not exist; see `hindcast view list`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Retention};
    use hindcast_engine::disk::MemDir;
    use hindcast_engine::testing::Site;

    fn view(id: &str, volume: Uuid, lsn: u64) -> StoredView {
        StoredView {
            id: id.into(),
            volume,
            name: None,
            shows: Shows::Lsn(lsn),
            time: Timestamp::UNIX_EPOCH,
            size: 1 << 20,
            created: Timestamp::UNIX_EPOCH,
            expires: Timestamp::UNIX_EPOCH,
        }
    }

    /// A moment with a view outlives its retention, also over a restart of the server.
    #[test]
    fn a_view_keeps_its_moment() {
        let site = Site::new(32).having("v", 1 << 20, 16 << 10);
        let retention = Retention { time: Some(1_000_000_000), bytes: None };
        let settings = CdpSettings { retention, anchors: AnchorPolicy::Every(2), ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
        let lsn = site.put(0, 1, 4096).0;
        let id = site.pool.volume("v").unwrap().uuid;
        let dir: Arc<dyn Dir> = Arc::new(MemDir::new());
        let views = Views::open(dir.clone(), &site.pool);
        let (pin, text) = moments::open_frozen(&site.pool, "v", &format!("lsn:{lsn}")).unwrap();
        assert_eq!(text, format!("lsn:{lsn}"));
        views.add(view("a", id, lsn), pin).unwrap();
        drop(views);
        let views = Views::open(dir.clone(), &site.pool);
        assert_eq!(views.all().unwrap(), [view("a", id, lsn)]);
        for n in 0..20 {
            site.clock.advance(60_000_000_000);
            site.put(0, n, 4096);
            site.idle();
        }
        assert!(moments::open_frozen(&site.pool, "v", &format!("lsn:{lsn}")).is_ok(), "it is pinned");
        views.renew("a", "2030-01-01T00:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(views.renew("b", Timestamp::UNIX_EPOCH).unwrap_err().kind(), ErrorKind::NotFound);
        views.remove("a").unwrap();
        assert_eq!(views.remove("a").unwrap_err().kind(), ErrorKind::NotFound);
        for n in 0..20 {
            site.clock.advance(60_000_000_000);
            site.put(0, n, 4096);
            site.idle();
        }
        assert!(moments::open_frozen(&site.pool, "v", &format!("lsn:{lsn}")).is_err(), "it has expired");
        assert!(Views::open(dir, &site.pool).all().unwrap().is_empty());
    }

    #[test]
    fn one_volume_does_not_use_up_all_views() {
        let site = Site::new(32).having("v", 1 << 20, 16 << 10);
        site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        let lsn = site.put(0, 1, 4096).0;
        let views = Views::open(Arc::new(MemDir::new()), &site.pool);
        let (pin, _) = moments::open_frozen(&site.pool, "v", &format!("lsn:{lsn}")).unwrap();
        let (full, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for n in 0..MAX_VIEWS_OF_VOLUME {
            views.add(view(&n.to_string(), full, lsn), pin.clone()).unwrap();
        }
        let error = views.add(view("more", full, lsn), pin.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        views.add(view("other", other, lsn), pin).unwrap();
    }

    #[test]
    fn views_get_new_identities() {
        let (old, new) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let content = encode(&[view("a", old, 7), view("b", Uuid::from_u128(3), 7)]).unwrap();
        let renewed = decode(&renew(&content, &[(old, new)].into()).unwrap()).unwrap();
        assert_eq!(renewed.iter().map(|view| view.volume.as_u128()).collect::<Vec<_>>(), [2, 3]);
        assert!(verify(b"{}").is_err());
    }
}
