//! Selection of snapshots by pattern and age, and their display as a tree. These are pure functions
//! of lists.

use hindcast_api::{Snapshot, TimeSpan, Volume};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Parses `90s`, `30m`, `12h`, `7d`, `4w`. A bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<TimeSpan>().map(|span| span.0)
}

/// Parses the time in seconds for which the snapshot of a rollback is kept.
pub(crate) fn undo_keep(text: &str) -> Result<u64, String> {
    match duration(text)?.as_secs() {
        0 => Err("the time must be at least 1s".into()),
        seconds => Ok(seconds),
    }
}

/// `VOLUME@NAME`. Each part may be a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) volume: String,
    pub(crate) name: String,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        match hindcast_api::split_address(text) {
            Some((volume, name)) => Ok(Pattern { volume: volume.into(), name: name.into() }),
            None => Err("a snapshot is VOLUME@NAME; db@* means all snapshots of db".into()),
        }
    }

    fn is_exact(&self) -> bool {
        self.is_of_one() && !self.name.contains(['*', '?'])
    }

    /// Returns whether the volume is a name, and no pattern.
    pub(crate) fn is_of_one(&self) -> bool {
        !self.volume.contains(['*', '?'])
    }

    fn matches(&self, s: &Snapshot) -> bool {
        glob(self.volume.as_bytes(), s.volume.as_bytes()) && glob(self.name.as_bytes(), s.name.as_bytes())
    }
}

/// Returns whether a text matches a pattern. `*` matches any text, `?` any one character.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // The last star, and where it began to match: to go back to when the rest fails.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Returns when each snapshot was taken, in spite of wrong clocks. The snapshots come by volume, in
/// the order in which they were taken, so no snapshot gets an earlier time than the one before it.
/// A time after `now` is wrong; the time of the next snapshot replaces it.
fn believed(all: &[Snapshot], now: Timestamp) -> Vec<Timestamp> {
    let of_volume = |snapshots: &[Snapshot]| {
        let mut next = now;
        let mut times: Vec<Timestamp> = Vec::new();
        for snapshot in snapshots.iter().rev() {
            next = if snapshot.created <= now { snapshot.created } else { next };
            times.push(next);
        }
        let mut newest = Timestamp::MIN;
        let mut raise = |time: Timestamp| {
            newest = newest.max(time);
            newest
        };
        times.into_iter().rev().map(&mut raise).collect::<Vec<_>>()
    };
    all.chunk_by(|a, b| a.volume == b.volume).flat_map(of_volume).collect()
}

/// Returns the selected snapshots, or the volume and the name of the first exact one that does not
/// exist. A pattern selects no protected snapshots. Ages are measured at `now`.
pub(crate) fn choose<'a>(
    all: &'a [Snapshot],
    patterns: &[Pattern],
    older_than: Option<(Duration, Timestamp)>,
) -> Result<Vec<&'a Snapshot>, (String, String)> {
    for pattern in patterns.iter().filter(|p| p.is_exact()) {
        if !all.iter().any(|s| pattern.matches(s)) {
            return Err((pattern.volume.clone(), pattern.name.clone()));
        }
    }
    let times = older_than.map(|(_, now)| believed(all, now));
    let is_old = |n: usize| {
        let age = |now: Timestamp, times: &[Timestamp]| Duration::try_from(now.duration_since(times[n]));
        older_than
            .zip(times.as_deref())
            .is_none_or(|((least, now), times)| age(now, times).is_ok_and(|its| its >= least))
    };
    let meant = |s: &Snapshot| patterns.iter().any(|p| p.matches(s) && (p.is_exact() || !s.protected));
    Ok(all.iter().enumerate().filter(|(n, s)| meant(s) && is_old(*n)).map(|(_, s)| s).collect())
}

/// A line of the tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Branch<'a> {
    pub(crate) depth: usize,
    /// Address of the snapshot or moment, or name of the volume.
    pub(crate) label: String,
    /// The snapshot. `None` for a moment, and for the current content of a volume.
    pub(crate) snapshot: Option<&'a Snapshot>,
}

/// Puts each snapshot and volume below its parent, or below the moment from which it comes. A child
/// of the same volume has the depth of its parent, so that a long history does not move to the
/// right.
pub(crate) fn tree<'a>(snapshots: &'a [Snapshot], volumes: &'a [Volume]) -> Vec<Branch<'a>> {
    let known: BTreeSet<String> = snapshots.iter().map(Snapshot::address).collect();
    let mut children: BTreeMap<Option<String>, Vec<Branch>> = BTreeMap::new();
    let mut moments: BTreeSet<&str> = BTreeSet::new();
    let mut put = |parent: Option<&String>, moment: Option<&'a String>, label, snapshot| {
        let mut parent = parent.filter(|p| known.contains(*p)).cloned();
        if let Some(moment) = moment {
            if moments.insert(moment) {
                let branch = Branch { depth: 0, label: moment.clone(), snapshot: None };
                children.entry(parent).or_default().push(branch);
            }
            parent = Some(moment.clone());
        }
        children.entry(parent).or_default().push(Branch { depth: 0, label, snapshot });
    };
    for s in snapshots {
        put(s.parent.as_ref(), s.after_moment.as_ref(), s.address(), Some(s));
    }
    for v in volumes {
        put(v.parent.as_ref(), v.after_moment.as_ref(), v.name.clone(), None);
    }
    let mut drawn = Vec::new();
    let mut next: Vec<Branch> = children.remove(&None).unwrap_or_default();
    // Last in is first out.
    next.reverse();
    next.sort_by(|a, b| volume_of(b).cmp(volume_of(a)));
    while let Some(branch) = next.pop() {
        if let Some(mut below) = children.remove(&Some(branch.label.clone())) {
            // Last in is first out: the line of the same volume comes last, after what branches
            // off.
            let same = |b: &Branch| volume_of(b) == volume_of(&branch);
            let on = below.iter().rposition(same);
            let mut line = on.map(|at| below.remove(at));
            below.iter_mut().for_each(|b| b.depth = branch.depth + 1);
            line.iter_mut().for_each(|b| b.depth = branch.depth);
            below.reverse();
            next.extend(line);
            next.extend(below);
        }
        drawn.push(branch);
    }
    drawn
}

fn volume_of<'a>(branch: &'a Branch) -> &'a str {
    branch.label.split_once('@').map_or(&branch.label, |(volume, _)| volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(address: &str, parent: Option<&str>) -> Snapshot {
        let (volume, name) = hindcast_api::split_address(address).unwrap();
        Snapshot {
            volume: volume.into(),
            name: name.into(),
            uuid: String::new(),
            size: 1,
            created: Timestamp::UNIX_EPOCH,
            labels: BTreeMap::new(),
            writable: None,
            inherited: None,
            expires: None,
            protected: false,
            parent: parent.map(str::to_owned),
            after_moment: None,
            clones: Vec::new(),
            handles: 0,
            unique: None,
            shared: None,
        }
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in
            [("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604_800), ("2w", 1_209_600), ("5", 5)]
        {
            assert_eq!(duration(text).unwrap().as_secs(), seconds);
        }
        for bad in ["", "s", "1.5h", "-1s", "1y", "99999999999999999999s", "99999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abcbc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abcd", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), matches, "{pattern} {text}");
        }
    }

    fn volume(name: &str, parent: Option<&str>) -> Volume {
        let json = format!(
            r#"{{"name":"{name}","uuid":"","size":1,"chunk_size":1,"block_size":512,"read_only":false,
                "method":"row","order":"dependent","snapshot_reserve":10,"auto_delete":false,"importing":false,
                "created":"1970-01-01T00:00:00Z","allocated":0,"handles":0,"stats":{{"reads":0,"read_bytes":0,
                "writes":0,"write_bytes":0,"flushes":0,"discards":0,"discard_bytes":0,"staged_read_bytes":0,"errors":0}}}}"#
        );
        let volume: Volume = serde_json::from_str(&json).unwrap();
        Volume { parent: parent.map(str::to_owned), ..volume }
    }

    #[test]
    fn a_line_of_history_is_drawn_straight_and_branches_deeper() {
        let snapshots = [
            snapshot("db@a", None),
            snapshot("db@b", Some("db@a")),
            snapshot("db@undo", Some("db@b")),
            snapshot("db@c", Some("db@a")),
            snapshot("test@x", Some("db@b")),
        ];
        let volumes = [volume("db", Some("db@c")), volume("new", None), volume("test", Some("test@x"))];
        let drawn: Vec<String> = tree(&snapshots, &volumes)
            .iter()
            .map(|b| format!("{}{}", "-".repeat(b.depth), b.label))
            .collect();
        // The rollback to a began the line that the volume is on.
        let expected = ["db@a", "-db@b", "--test@x", "--test", "-db@undo", "db@c", "db", "new"];
        assert_eq!(drawn, expected);
        // Shown alone, a clone begins at the margin.
        let alone = tree(&snapshots[4..], &volumes[2..]);
        assert_eq!(alone.iter().map(|b| b.depth).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn what_comes_from_a_moment_hangs_there() {
        let at = |moment: &str, of: Snapshot| Snapshot { after_moment: Some(moment.into()), ..of };
        let snapshots = [
            snapshot("db@a", None),
            snapshot("db@b", Some("db@a")),
            snapshot("db@undo", Some("db@b")),
            at("db@lsn:7", snapshot("db@c", Some("db@a"))),
        ];
        let copy = Volume { after_moment: Some("db@lsn:7".into()), ..volume("copy", Some("db@a")) };
        let early = Volume { after_moment: Some("db@lsn:3".into()), ..volume("early", None) };
        let volumes = [volume("db", Some("db@c")), copy, early];
        let drawn: Vec<String> = tree(&snapshots, &volumes)
            .iter()
            .map(|b| format!("{}{}", "-".repeat(b.depth), b.label))
            .collect();
        let expected = ["db@a", "-db@b", "-db@undo", "db@lsn:7", "-copy", "db@c", "db", "db@lsn:3", "-early"];
        assert_eq!(drawn, expected);
    }

    #[test]
    fn names_must_exist_and_patterns_spare_the_protected() {
        let mut all = [snapshot("db@a", None), snapshot("db@b", None), snapshot("log@a", None)];
        all[1].protected = true;
        let chosen = |patterns: &[&str], age: Option<Duration>| {
            let patterns: Vec<Pattern> = patterns.iter().map(|p| Pattern::parse(p).unwrap()).collect();
            let chosen = choose(&all, &patterns, age.map(|age| (age, Timestamp::now())))?;
            Ok::<_, (String, String)>(chosen.iter().map(|s| s.address()).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["db@*"], None).unwrap(), ["db@a"]);
        assert_eq!(chosen(&["db@b"], None).unwrap(), ["db@b"], "the server will say why not");
        assert_eq!(chosen(&["*@a", "db@a"], None).unwrap(), ["db@a", "log@a"]);
        assert_eq!(chosen(&["*@c*"], None).unwrap(), Vec::<String>::new());
        assert_eq!(chosen(&["*@a", "db@c"], None).unwrap_err(), ("db".into(), "c".into()));
        assert_eq!(chosen(&["*@a"], Some(Duration::from_secs(3600))).unwrap().len(), 2);
        let young = snapshot("db@a", None);
        let young = [Snapshot { created: Timestamp::now(), ..young }];
        let pattern = [Pattern::parse("db@a").unwrap()];
        let hour = Duration::from_secs(3600);
        assert!(choose(&young, &pattern, Some((hour, Timestamp::now()))).unwrap().is_empty());
    }

    #[test]
    fn an_age_goes_by_the_order_where_the_clock_was_set() {
        let at = |day: i64| Timestamp::from_second(day * 86_400).unwrap();
        // The clock was ahead for a moment, and in 1970 for another.
        let days = [100, 101, 9000, 102, 0, 110, 9000];
        let taken =
            |(n, day): (usize, &i64)| Snapshot { created: at(*day), ..snapshot(&format!("db@{n}"), None) };
        let all: Vec<Snapshot> = days.iter().enumerate().map(taken).collect();
        let believed: Vec<i64> = believed(&all, at(111)).iter().map(|t| t.as_second() / 86_400).collect();
        assert_eq!(believed, [100, 101, 102, 102, 102, 110, 111]);
        let older = |days: u64| {
            let age = (Duration::from_secs(days * 86_400), at(111));
            let chosen = choose(&all, &[Pattern::parse("db@*").unwrap()], Some(age)).unwrap();
            chosen.iter().map(|s| s.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(older(10), ["0", "1"]);
        assert_eq!(older(9), ["0", "1", "2", "3", "4"]);
        assert_eq!(older(0).len(), 7);
    }
}
