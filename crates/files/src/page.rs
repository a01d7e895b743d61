//! One page of a directory: the entries after a name, in the order of their names.

use std::collections::BTreeMap;

/// The first entries after a name, of a directory whose entries come in any order. Its memory is
/// bounded, however large the directory is.
pub(crate) struct Page<T> {
    after: Option<Vec<u8>>,
    limit: usize,
    found: BTreeMap<Vec<u8>, T>,
    has_more: bool,
}

impl<T> Page<T> {
    /// Makes an empty page of at most `limit` entries.
    pub(crate) fn new(after: Option<Vec<u8>>, limit: usize) -> Self {
        Page { after, limit: limit.max(1), found: BTreeMap::new(), has_more: false }
    }

    /// Offers an entry. A name that can't be in a directory is left out: empty, `.`, `..`, or with
    /// a slash or a zero byte.
    pub(crate) fn offer(&mut self, name: &[u8], entry: T) {
        let is_bad = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0));
        if is_bad || self.after.as_deref().is_some_and(|after| name <= after) {
            return;
        }
        // Of names that can't be told apart, none is missing.
        let mut name = name.to_vec();
        while self.found.contains_key(&name) {
            name.push(b'~');
        }
        self.found.insert(name, entry);
        if self.found.len() > self.limit {
            self.found.pop_last();
            self.has_more = true;
        }
    }

    /// Returns the entries, and whether the directory has more after them.
    pub(crate) fn finish(self) -> (Vec<(Vec<u8>, T)>, bool) {
        (self.found.into_iter().collect(), self.has_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_every_name_once() {
        let names: Vec<Vec<u8>> = (0..100_u8).map(|i| vec![b'a' + i % 26, b'0' + i % 10, i]).collect();
        let names: Vec<Vec<u8>> =
            names.into_iter().filter(|n| !n.contains(&b'/') && !n.contains(&0)).collect();
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let mut page = Page::new(after, 7);
            names.iter().for_each(|name| page.offer(name, ()));
            let (found, has_more) = page.finish();
            assert!(found.len() <= 7);
            seen.extend(found.into_iter().map(|(name, ())| name));
            if !has_more {
                break;
            }
            after = seen.last().cloned();
        }
        let mut sorted = names;
        sorted.sort();
        assert_eq!(seen, sorted);
    }

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let mut page = Page::new(None, 10);
        for name in [b"".as_slice(), b".", b"..", b"a/b", b"/", b"a\0b", b"fine", b"...", b".x"] {
            page.offer(name, ());
        }
        let names: Vec<Vec<u8>> = page.finish().0.into_iter().map(|(name, ())| name).collect();
        assert_eq!(names, [b"...".as_slice(), b".x", b"fine"]);
    }
}
