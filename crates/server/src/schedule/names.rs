//! The names of the volumes of schedules, cached for one request or one round of the scheduler.

use hindcast_engine::pool::{Pool, VolumeInfo};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The names of volumes, by UUID. It reads all volumes when a name is first needed. It reads them
/// again only if a volume was renamed or deleted since.
pub(crate) struct Names<'a> {
    all: Box<dyn Fn() -> Vec<VolumeInfo> + 'a>,
    known: BTreeMap<Uuid, String>,
    /// Whether all volumes were read. Then a volume without a name here was deleted.
    is_whole: bool,
}

impl<'a> Names<'a> {
    /// Creates an empty cache. `all` returns all volumes. A volume must exist before `all` is
    /// called. Otherwise the cache takes the volume for deleted.
    pub(crate) fn new(all: impl Fn() -> Vec<VolumeInfo> + 'a) -> Names<'a> {
        Names { all: Box::new(all), known: BTreeMap::new(), is_whole: false }
    }

    /// Adds names that the caller has found already.
    pub(crate) fn learn(&mut self, names: impl Iterator<Item = (Uuid, String)>) {
        self.known.extend(names);
    }

    /// Returns the current names of those of `volumes` that still exist.
    pub(crate) fn of(&mut self, pool: &Pool, volumes: &[Uuid]) -> Vec<String> {
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
    use crate::testing::{create, pool};
    use std::cell::Cell;

    #[test]
    fn volumes_are_looked_at_once_for_many_schedules() {
        let (_place, pool) = pool();
        let ids: Vec<Uuid> = ["a", "b", "c"].map(|name| create(&pool, name).uuid).to_vec();
        let gone = create(&pool, "gone").uuid;
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
        let (a, b) = (create(&pool, "a").uuid, create(&pool, "b").uuid);
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
        let (a, b) = (create(&pool, "a").uuid, create(&pool, "b").uuid);
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
