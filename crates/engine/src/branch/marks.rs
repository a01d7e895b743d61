//! The marks of all volumes, by name and in the order of their moments.

use crate::ids::{Lsn, Stamp, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The marks of all volumes. A volume has at most one mark at an LSN.
#[derive(Default)]
pub(crate) struct Marks {
    /// The moments in pool time, by volume and by name.
    by_name: BTreeMap<VolumeId, BTreeMap<Arc<str>, Stamp>>,
    /// The names, by volume and by moment.
    by_lsn: BTreeMap<VolumeId, BTreeMap<Lsn, Arc<str>>>,
}

impl Marks {
    pub(crate) fn add(&mut self, volume: VolumeId, name: &str, at: Stamp) {
        let name: Arc<str> = name.into();
        let before = self.by_name.entry(volume).or_default().insert(name.clone(), at);
        let names = self.by_lsn.entry(volume).or_default();
        before.map(|before| names.remove(&before.lsn));
        names.insert(at.lsn, name);
    }

    /// Removes the mark of a volume at an LSN.
    pub(crate) fn remove(&mut self, volume: VolumeId, lsn: Lsn) {
        let name = self.by_lsn.get_mut(&volume).and_then(|names| names.remove(&lsn));
        if let (Some(name), Some(marks)) = (name, self.by_name.get_mut(&volume)) {
            marks.remove(&name);
        }
    }

    /// Removes all marks of a volume.
    pub(crate) fn remove_all(&mut self, volume: VolumeId) {
        self.by_name.remove(&volume);
        self.by_lsn.remove(&volume);
    }

    /// Returns the moment of a mark.
    pub(crate) fn get(&self, volume: VolumeId, name: &str) -> Option<Stamp> {
        self.by_name.get(&volume)?.get(name).copied()
    }

    /// Returns the marks of a volume by name.
    pub(crate) fn of(&self, volume: VolumeId) -> impl Iterator<Item = (&Arc<str>, Stamp)> {
        self.by_name.get(&volume).into_iter().flatten().map(|(name, at)| (name, *at))
    }

    /// Returns the oldest mark of each volume that has any.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = (VolumeId, Lsn)> {
        self.by_lsn.iter().filter_map(|(volume, names)| Some((*volume, *names.first_key_value()?.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_agree() {
        let mut marks = Marks::default();
        let at = |lsn| Stamp::new(Lsn(lsn), lsn * 10);
        let (one, two) = (VolumeId(1), VolumeId(2));
        marks.add(one, "b", at(3));
        marks.add(one, "a", at(5));
        marks.add(two, "a", at(5));
        marks.add(one, "b", at(7));
        let of = |marks: &Marks, volume| {
            marks.of(volume).map(|(name, at)| (name.to_string(), at.lsn.0)).collect::<Vec<_>>()
        };
        assert_eq!(of(&marks, one), [("a".into(), 5), ("b".into(), 7)]);
        assert_eq!(marks.oldest().collect::<Vec<_>>(), [(one, Lsn(5)), (two, Lsn(5))]);
        marks.remove(one, Lsn(3));
        marks.remove(one, Lsn(5));
        assert_eq!(
            (marks.get(one, "a"), marks.get(one, "b"), marks.get(two, "a")),
            (None, Some(at(7)), Some(at(5)))
        );
        assert_eq!(marks.oldest().next(), Some((one, Lsn(7))));
        marks.remove_all(one);
        assert_eq!((of(&marks, one), of(&marks, two).len()), (vec![], 1));
    }

    /// This would take minutes if each removal looked at all marks.
    #[test]
    fn many_marks_are_removed_one_by_one() {
        let mut marks = Marks::default();
        let all = 1..=100_000;
        all.clone().for_each(|lsn| marks.add(VolumeId(1), &format!("m{lsn}"), Stamp::new(Lsn(lsn), lsn)));
        for lsn in all {
            assert_eq!(marks.oldest().next(), Some((VolumeId(1), Lsn(lsn))));
            marks.remove(VolumeId(1), Lsn(lsn));
        }
        assert_eq!((marks.of(VolumeId(1)).count(), marks.oldest().count()), (0, 0));
    }
}
