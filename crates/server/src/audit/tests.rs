//! Tests of the audit: its chain, its pages, and failures of its disk.

use super::chain::names;
use super::entry::note;
use super::*;
use hindcast_engine::disk::FileDir;
use jiff::Timestamp;
use serde_json::json;
use std::fs;

fn own(dir: &Path) -> Arc<dyn Dir> {
    Arc::new(FileDir::new(dir))
}

fn open(dir: &Path) -> Audit {
    Audit::open(Some(dir), own(dir))
}

fn entry(who: &str, time: &str) -> AuditEntry {
    AuditEntry { who: Some(who.into()), time: time.parse().unwrap(), method: "GET".into(), ..note("/x") }
}

fn add(audit: &Audit, who: &str, time: &str) {
    audit.files.record(entry(who, time)).unwrap();
}

fn filled(dir: &Path) -> Audit {
    let audit = open(dir);
    for (who, time) in
        [("anna", "2026-10-31T23:59:59Z"), ("bob", "2026-11-01T00:00:00Z"), ("anna", "2026-11-02T00:00:00Z")]
    {
        add(&audit, who, time);
    }
    audit
}

fn file(dir: &Path, month: &str) -> PathBuf {
    dir.join(DIRECTORY).join(format!("{month}.jsonl"))
}

/// Runs a future of the audit to its end.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn listed(audit: &Audit, wanted: &Wanted) -> Vec<String> {
    audit.page(wanted).unwrap().into_iter().filter_map(|e| e.who).collect()
}

#[test]
fn entries_are_chained_over_months_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    assert_eq!(names(&dir.path().join(DIRECTORY)).unwrap(), ["2026-10.jsonl", "2026-11.jsonl"]);
    drop(audit);
    let audit = open(dir.path());
    wait(audit.record(entry("carl", "2026-12-01T00:00:00Z"), None)).unwrap();
    // The clock was set back.
    add(&audit, "dora", "2026-11-01T00:00:00Z");
    let found = audit.verify().unwrap();
    assert_eq!((found.files, found.entries, found.continued), (3, 5, false));
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    audit.keep_up();
    let since: Option<Timestamp> = Some("2026-11-01T12:00:00Z".parse().unwrap());
    let all = |limit| Wanted { limit, ..Wanted::default() };
    assert_eq!(listed(&audit, &Wanted { since, ..all(10) }), ["anna", "carl"]);
    assert_eq!(listed(&audit, &Wanted { who: Some("anna".into()), ..all(10) }), ["anna", "anna"]);
    assert_eq!(listed(&audit, &all(2)), ["carl", "dora"]);
    fs::remove_file(file(dir.path(), "2026-10")).unwrap();
    let found = audit.verify().unwrap();
    assert_eq!((found.entries, found.problems.len(), found.continued), (4, 0, true));
}

#[test]
fn pages_follow_each_other_and_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    let long = "x".repeat(40 << 10);
    for n in 0..150 {
        let month = if n < 70 { "2026-10" } else { "2026-11" };
        let more = AuditEntry {
            asked: Some(json!(long)),
            ..entry(&format!("{n}"), &format!("{month}-02T00:00:00Z"))
        };
        audit.files.record(more).unwrap();
    }
    let mut all: Vec<String> = Vec::new();
    let mut wanted = Wanted { limit: 10_000, ..Wanted::default() };
    let mut pages = 0;
    loop {
        let page = audit.page(&wanted).unwrap();
        let Some(first) = page.first() else { break };
        assert!(serde_json::to_vec(&page).unwrap().len() < 5 << 20, "a page of {} entries", page.len());
        wanted.before = Some(EntryPlace::parse(first.at.as_deref().unwrap()).unwrap());
        all.splice(0..0, page.into_iter().filter_map(|e| e.who));
        pages += 1;
    }
    assert_eq!(all, (0..150).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(pages, 2);
    let text = fs::read_to_string(file(dir.path(), "2026-10")).unwrap();
    assert!(!text.contains("\"at\""), "a place is for responses only");
    for bad in ["", "x", "2026-11", "2026-11:", "2026-11:-1", "../../x:1", "/etc/pa:1", "2026-11:1x"] {
        assert_eq!(EntryPlace::parse(bad), None, "{bad}");
    }
    let beyond = Wanted { before: EntryPlace::parse("2026-11:99999999999"), limit: 1, ..Wanted::default() };
    assert_eq!(listed(&audit, &beyond), ["149"]);
}

#[test]
fn a_changed_a_removed_and_an_added_line_are_noticed() {
    let change: [fn(&str) -> String; 5] = [
        |text| text.replacen("bob", "eve", 1),
        |text| text.lines().skip(1).map(|line| format!("{line}\n")).collect(),
        |text| text.lines().take(1).map(|line| format!("{line}\n")).collect(),
        |text| format!("{text}{{}}\n"),
        |text| format!("{}\n{text}", "x".repeat(1 << 20)),
    ];
    for (n, change) in change.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let audit = filled(dir.path());
        let path = file(dir.path(), "2026-11");
        let text = fs::read_to_string(&path).unwrap();
        let changed = change(&text);
        assert_ne!(changed, text);
        fs::write(&path, changed).unwrap();
        assert!(!audit.verify().unwrap().problems.is_empty(), "{n}");
    }
}

#[test]
fn all_problems_are_listed_and_then_counted() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path());
    for n in 0..400 {
        add(&audit, &format!("user{n}"), "2026-11-01T00:00:00Z");
    }
    let path = file(dir.path(), "2026-11");
    let text = fs::read_to_string(&path).unwrap();
    let change = |every: usize| {
        let changed = text.lines().enumerate().map(|(n, line)| match n % every {
            1 => format!("{}\n", line.replace("user", "eve")),
            _ => format!("{line}\n"),
        });
        fs::write(&path, changed.collect::<String>()).unwrap();
        audit.verify().unwrap()
    };
    let few = change(100);
    assert_eq!((few.entries, few.unlisted), (400, 0));
    assert_eq!(few.problems.len(), 4, "{:?}", few.problems);
    assert!(few.problems[3].contains("line 303"), "{:?}", few.problems);
    let many = change(2);
    assert_eq!((many.problems.len() as u64 + many.unlisted, many.problems.len()), (200, 100));
}

#[test]
fn a_month_that_vanished_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    for month in ["2026-12", "2027-01"] {
        add(&audit, "carl", &format!("{month}-01T00:00:00Z"));
    }
    fs::rename(file(dir.path(), "2026-12"), dir.path().join("moved")).unwrap();
    let problems = audit.verify().unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("2027-01.jsonl does not continue 2026-11.jsonl"), "{problems:?}");
}

#[test]
fn a_removed_newest_file_is_noticed_after_a_restart() {
    for cut in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let audit = filled(dir.path());
        audit.keep_up();
        drop(audit);
        assert!(open(dir.path()).verify().unwrap().problems.is_empty());
        let path = file(dir.path(), "2026-11");
        match cut {
            true => {
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, text.lines().next().unwrap().to_owned() + "\n").unwrap();
            }
            false => fs::remove_file(&path).unwrap(),
        }
        // The trace stays, however often the server starts and writes down the new end.
        for _ in 0..3 {
            let audit = open(dir.path());
            add(&audit, "anna", "2026-11-20T00:00:00Z");
            audit.keep_up();
            let problems = audit.verify().unwrap().problems;
            assert_eq!(problems.len(), 1, "{problems:?}");
            let expected = if cut { "2026-11.jsonl has" } else { "2026-11.jsonl is missing" };
            assert!(problems[0].contains(expected), "{problems:?}");
        }
    }
}

#[test]
fn a_directory_that_vanishes_while_the_server_runs_leaves_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    fs::remove_dir_all(dir.path().join(DIRECTORY)).unwrap();
    audit.files.record(entry("anna", "2026-12-01T00:00:00Z")).unwrap_err();
    wait(audit.ready()).unwrap();
    let problems = audit.verify().unwrap().problems;
    assert!(problems.len() == 1 && problems[0].contains("2026-11.jsonl is missing"), "{problems:?}");
}

#[test]
fn a_torn_line_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path()));
    let path = file(dir.path(), "2026-11");
    let text = fs::read_to_string(&path).unwrap();
    for torn in ["{\"time\":".to_owned(), "\0".repeat(300 << 10), "\0".repeat(128 << 10)] {
        fs::write(&path, format!("{text}{torn}")).unwrap();
        let audit = open(dir.path());
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "{} bytes", torn.len());
        add(&audit, "anna", "2026-11-03T00:00:00Z");
        assert!(audit.verify().unwrap().problems.is_empty());
    }
}

#[test]
fn an_audit_that_cannot_be_written_says_so_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join(DIRECTORY);
    fs::write(&place, "in the way").unwrap();
    let audit = open(dir.path());
    assert!(audit.problem().is_some() && wait(audit.ready()).is_err());
    fs::remove_file(&place).unwrap();
    wait(audit.ready()).unwrap();
    assert_eq!(audit.problem(), None);
    add(&audit, "anna", "2026-11-03T00:00:00Z");
    assert!(audit.verify().unwrap().problems.is_empty());
    assert!(wait(Audit::open(None, own(dir.path())).ready()).is_ok());
}

/// A disk that does not answer stops those that wait for it, and no thread that serves others.
#[test]
fn a_held_audit_delays_neither_health_nor_the_check_before_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    let held = audit.files.chain.lock();
    wait(async {
        let recorded = audit.record(entry("carl", "2026-11-03T00:00:00Z"), None);
        let late = tokio::time::timeout(Duration::from_millis(50), recorded).await;
        assert!(late.is_err(), "the entry waits");
        let begun = Instant::now();
        audit.ready().await.unwrap();
        assert_eq!(audit.problem(), None);
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
    // A change is not begun when its entry may never be written.
    audit.files.state.lock().writing = Instant::now().checked_sub(SLOW);
    assert!(wait(audit.ready()).err().unwrap().contains("has not answered"));
    drop(held);
    wait(audit.record(entry("dora", "2026-11-03T00:00:00Z"), None)).unwrap();
    assert_eq!(listed(&audit, &Wanted { limit: 2, ..Wanted::default() }), ["carl", "dora"]);
}

#[test]
fn a_stop_writes_the_entries_that_wait() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    let held = audit.files.chain.lock();
    wait(async {
        for who in ["carl", "dora"] {
            let recorded = audit.record(entry(who, "2026-11-03T00:00:00Z"), None);
            tokio::time::timeout(Duration::from_millis(20), recorded).await.unwrap_err();
        }
    });
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| audit.close());
        drop(held);
        closing.join().unwrap();
    });
    assert_eq!(listed(&audit, &Wanted { limit: 2, ..Wanted::default() }), ["carl", "dora"]);
    wait(audit.record(entry("emil", "2026-11-03T00:00:00Z"), None)).unwrap_err();
}

#[test]
fn each_change_under_way_has_a_place_for_its_entry() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    let mut turns: Vec<EntryTurn> = (0..MAX_WAITING).map(|_| wait(audit.ready()).unwrap()).collect();
    assert!(wait(audit.ready()).is_err());
    wait(audit.record(entry("carl", "2026-11-03T00:00:00Z"), turns.pop())).unwrap();
    wait(audit.ready()).unwrap();
}

#[test]
fn refusals_without_entries_are_counted_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let audit = filled(dir.path());
    let refused = (0..100).filter(|_| audit.refusals.turn(None, Instant::now()).is_none()).count();
    audit.keep_up();
    let last = audit.page(&Wanted { limit: 1, ..Wanted::default() }).unwrap().remove(0);
    assert_eq!(last.suppressed, Some(refused as u64));
    assert!(last.subject.contains("unknown callers"), "{}", last.subject);
}

#[test]
fn secrets_are_left_out_wherever_they_are() {
    let body = json!({
        "name": "anna", "password": "p1", "mutual_secret": "p2", "Token": ["p3"], "no": null,
        "more": [{"link": "p4", "long": "x".repeat(1000)}], "deep": [[[[[[["p5"]]]]]]],
    });
    let text = without_secrets(&body).to_string();
    assert!(text.contains("anna") && text.len() < 700, "{text}");
    for secret in ["p1", "p2", "p3", "p4", "p5"] {
        assert!(!text.contains(secret), "{text}");
    }
}
