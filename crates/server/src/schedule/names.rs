//! The names of the volumes that schedules have, for as long as a request or a round takes.

use super::Uuid;
use hindcast_engine::pool::{Pool, VolumeInfo};
use std::collections::BTreeMap;

/// Names of volumes by identity. All volumes are looked at when a name is first needed, and again
/// only when a volume was renamed or deleted since.
pub(super) struct Names<'a> {
    all: Box<dyn Fn() -> Vec<VolumeInfo> + 'a>,
    known: BTreeMap<Uuid, String>,
    /// All volumes were looked at: who is not known was deleted.
    is_whole: bool,
}

impl<'a> Names<'a> {
    /// `all` tells of all volumes. What is asked for must have existed before it is called.
    pub(super) fn new(all: impl Fn() -> Vec<VolumeInfo> + 'a) -> Names<'a> {
        Names { all: Box::new(all), known: BTreeMap::new(), is_whole: false }
    }

    /// Takes names that somebody has found already.
    pub(super) fn learn(&mut self, names: impl Iterator<Item = (Uuid, String)>) {
        self.known.extend(names);
    }

    /// The names, as they are now, of those volumes that are still there.
    pub(super) fn of(&mut self, pool: &Pool, volumes: &[Uuid]) -> Vec<String> {
        let holds = |id: &Uuid| match self.known.get(id) {
            Some(name) => pool.volume(name).is_ok_and(|v| v.uuid == *id),
            None => self.is_whole,
        };
        if !volumes.iter().all(holds) {
            self.known = (self.all)().into_iter().map(|v| (v.uuid, v.name)).collect();
            self.is_whole = true;
        }
        volumes.iter().filter_map(|id| self.known.get(id).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world;
    use hindcast_engine::disk::{Dir, FileDir};
    use hindcast_engine::pool::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
    use std::cell::Cell;
    use std::sync::Arc;

    const M: u64 = 1 << 20;

    fn pool() -> (tempfile::TempDir, Arc<Pool>) {
        let place = tempfile::tempdir().unwrap();
        let dir: Arc<dyn Dir> = Arc::new(FileDir::new(place.path()));
        let config = PoolConfig { journal_size: 16 * M, segment_size: 4 * M, ..PoolConfig::default() };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 * M), force: false };
        Pool::create(dir.clone(), &world::real(), &config, Placement::Anywhere, &[pv]).unwrap();
        (place, Pool::open(dir, world::real(), PoolOptions::default()).unwrap())
    }

    fn create(pool: &Pool, name: &str) -> Uuid {
        let new =
            NewVolume { name: name.into(), size: M, chunk_size: 16 << 10, block_size: 512, read_only: false };
        pool.create_volume(&new).unwrap().uuid
    }

    #[test]
    fn volumes_are_looked_at_once_for_many_schedules() {
        let (_place, pool) = pool();
        let ids: Vec<Uuid> = ["a", "b", "c"].map(|name| create(&pool, name)).to_vec();
        let gone = create(&pool, "gone");
        pool.delete_volume("gone", false).unwrap();
        let looks = Cell::new(0);
        let mut names = Names::new(|| {
            looks.set(looks.get() + 1);
            pool.volumes()
        });
        for _ in 0..100 {
            assert_eq!(names.of(&pool, &ids), ["a", "b", "c"]);
            assert_eq!(names.of(&pool, &[gone, ids[1]]), ["b"]);
        }
        assert_eq!(looks.get(), 1);
    }

    #[test]
    fn who_was_renamed_meanwhile_is_found() {
        let (_place, pool) = pool();
        let (a, b) = (create(&pool, "a"), create(&pool, "b"));
        let mut names = Names::new(|| pool.volumes());
        assert_eq!(names.of(&pool, &[a, b]), ["a", "b"]);
        pool.rename_volume("a", "was-a").unwrap();
        pool.rename_volume("b", "a").unwrap();
        assert_eq!(names.of(&pool, &[a, b]), ["was-a", "a"]);
        pool.delete_volume("a", false).unwrap();
        assert_eq!(names.of(&pool, &[a, b]), ["was-a"]);
    }

    #[test]
    fn names_that_are_known_need_no_look() {
        let (_place, pool) = pool();
        let (a, b) = (create(&pool, "a"), create(&pool, "b"));
        let looks = Cell::new(0);
        let mut names = Names::new(|| {
            looks.set(looks.get() + 1);
            pool.volumes()
        });
        names.learn([(a, "a".to_owned()), (b, "b".to_owned())].into_iter());
        assert_eq!(names.of(&pool, &[b, a]), ["b", "a"]);
        assert_eq!(looks.get(), 0);
    }
}
