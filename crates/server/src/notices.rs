//! Notices: the server tells the operator that a problem of its health begins, and that it ends.
//!
//! One thread compares the health with what was reported. Another one delivers. Between them is a
//! queue of limited length, so a receiver that hangs delays nothing but notices. No thread that
//! serves clients takes part.

use crate::app::App;
use crate::periodic::Worker;
use crate::realtime;
use crate::receivers::{Event, Notice, Receivers};
use hindcast_api::{NoticeDelivery, Problem, Severity};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Interval between comparisons.
const LOOK: Duration = Duration::from_secs(5);
/// Shortest time between two notices of one code. Changes in between are reported together.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of notices that wait for delivery. A notice that finds no place is made again
/// later, from the state then.
const QUEUE: usize = 64;

/// What was reported about one code.
#[derive(Debug, Clone)]
struct Reported {
    /// Number of problems. 0: their end was reported.
    count: usize,
    at: Instant,
    /// The last notice of the code, for the notice of the end.
    notice: Notice,
}

/// What was reported about all codes.
#[derive(Debug, Default)]
struct Report {
    codes: BTreeMap<String, Reported>,
}

impl Report {
    /// Returns the notices that are due: a code has more problems than were reported, or has none
    /// any more. The caller reports each with [`Report::reported`].
    fn due(&mut self, problems: &[Problem], min: Severity, (now, time): (Instant, Timestamp)) -> Vec<Notice> {
        let mut found = current(problems, min, time);
        let mut due = Vec::new();
        self.codes.retain(|_, last| last.count > 0 || now.duration_since(last.at) < PAUSE);
        for (code, last) in &mut self.codes {
            let notice = found.remove(code);
            let count = notice.as_ref().map_or(0, |notice| notice.count);
            if let Some(notice) = notice.as_ref().filter(|_| count < last.count) {
                // Some ended. What begins after that is new.
                last.count = count;
                last.notice = notice.clone();
            }
            if count == last.count || now.duration_since(last.at) < PAUSE {
                continue;
            }
            let ended = || Notice { event: Event::Ended, count: 0, time, ..last.notice.clone() };
            due.push(notice.unwrap_or_else(ended));
        }
        due.extend(found.into_values());
        due
    }

    /// Stores that a notice was reported.
    fn reported(&mut self, notice: Notice, at: Instant) {
        self.codes.insert(notice.code.clone(), Reported { count: notice.count, at, notice });
    }
}

/// Returns one notice for each code that has problems of at least the severity `min`.
fn current(problems: &[Problem], min: Severity, time: Timestamp) -> BTreeMap<String, Notice> {
    let mut found: BTreeMap<String, Notice> = BTreeMap::new();
    for problem in problems {
        let severity = problem.severity.unwrap_or(Severity::Warning);
        if severity < min {
            continue;
        }
        let notice = found.entry(problem.code.clone()).or_insert_with(|| Notice {
            event: Event::Began,
            code: problem.code.clone(),
            severity,
            message: String::new(),
            count: 0,
            since: problem.since,
            time,
        });
        notice.since = notice.since.into_iter().chain(problem.since).min();
        if notice.count > 0 {
            notice.message.push_str("; ");
        }
        notice.message.push_str(&problem.message);
        notice.count += 1;
    }
    found
}

impl App {
    /// Sends a test notice to all receivers, and returns the results.
    pub(crate) fn test_notices(&self) -> Result<Vec<NoticeDelivery>> {
        let receivers = self.receivers.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "send a test notice: no receiver is configured; give --notify-command or --notify-webhook, or \
                 write them into [notify] of the configuration file, and restart the server",
            )
        })?;
        let notice = Notice {
            event: Event::Test,
            code: "test".into(),
            severity: Severity::Info,
            message: "this is a test; nothing is wrong".into(),
            count: 0,
            since: None,
            time: Timestamp::now(),
        };
        Ok(realtime::lowered(|| receivers.deliver(&notice)))
    }
}

/// Starts the threads that report problems: each begin and end is an event, and goes to the
/// receivers if there are any.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    let queue = match app.receivers.clone() {
        Some(receivers) => Some((receivers.min_severity, start_delivery(receivers)?)),
        None => None,
    };
    let (mut of_events, mut of_notices) = (Report::default(), Report::default());
    let look = move || {
        let now = (Instant::now(), Timestamp::now());
        let problems = app.health().problems;
        for notice in of_events.due(&problems, Severity::Info, now) {
            tell(&notice);
            of_events.reported(notice, now.0);
        }
        let Some((min, queue)) = &queue else { return };
        for notice in of_notices.due(&problems, *min, now) {
            if queue.try_send(notice.clone()).is_ok() {
                of_notices.reported(notice, now.0);
            }
        }
    };
    Worker::start("notices", LOOK, look)
}

/// Starts the thread that delivers notices. It ends with the queue. A stop does not wait for it,
/// because a receiver may hang.
fn start_delivery(receivers: Receivers) -> io::Result<mpsc::SyncSender<Notice>> {
    let (queue, notices) = mpsc::sync_channel::<Notice>(QUEUE);
    std::thread::Builder::new().name("notices-send".into()).spawn(move || deliver(&receivers, &notices))?;
    Ok(queue)
}

/// Makes an event of a problem that begins or ends.
fn tell(notice: &Notice) {
    let (code, severity, message) = (&notice.code, notice.severity.name(), &notice.message);
    match notice.event {
        Event::Ended => tracing::info!(event = "health.ended", code, severity = "info", "{message}"),
        _ => tracing::warn!(event = "health.began", code, severity, "{message}"),
    }
}

fn deliver(receivers: &Receivers, notices: &Receiver<Notice>) {
    for notice in notices {
        for NoticeDelivery { receiver, error } in receivers.deliver(&notice) {
            let (code, event) = (&notice.code, notice.event);
            match error {
                None => tracing::info!(receiver, code, what = ?event, "a notice was delivered"),
                Some(error) => {
                    tracing::warn!(receiver, code, what = ?event, error, "a notice was not delivered")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report, and the health that it is compared with.
    struct Play {
        report: Report,
        begin: Instant,
    }

    impl Play {
        fn new() -> Play {
            Play { report: Report::default(), begin: Instant::now() }
        }

        /// Returns the notices at a second, when the health has these problems.
        fn at(&mut self, second: u64, problems: &[(&str, &str)]) -> Vec<(Event, String, usize)> {
            let problems: Vec<Problem> =
                problems.iter().map(|(code, message)| crate::convert::problem(code, *message)).collect();
            let (now, time) = (self.begin + Duration::from_secs(second), Timestamp::now());
            let due = self.report.due(&problems, Severity::Warning, (now, time));
            due.iter().for_each(|notice| self.report.reported(notice.clone(), now));
            due.into_iter().map(|n| (n.event, format!("{}: {}", n.code, n.message), n.count)).collect()
        }
    }

    #[test]
    fn a_problem_is_told_when_it_begins_and_when_it_ends() {
        let mut play = Play::new();
        assert_eq!(play.at(0, &[]), []);
        let low = [("space-low", "10 % left")];
        assert_eq!(play.at(5, &low), [(Event::Began, "space-low: 10 % left".into(), 1)]);
        assert_eq!(play.at(10, &[("space-low", "9 % left")]), [], "the words changed, the problem did not");
        assert_eq!(play.at(500, &low), []);
        assert_eq!(play.at(505, &[]), [(Event::Ended, "space-low: 10 % left".into(), 0)]);
        assert_eq!(play.at(510, &[]), []);
        assert!(play.at(600, &[]).is_empty() && play.report.codes.is_empty());
    }

    #[test]
    fn what_is_less_severe_is_not_told() {
        let mut play = Play::new();
        assert_eq!(play.at(0, &[("epochs-low", "info"), ("reserve-exceeded", "info")]), []);
    }

    #[test]
    fn a_code_is_told_once_a_minute_at_most() {
        let mut play = Play::new();
        let failing = [("schedule-failing", "a failed"), ("schedule-failing", "b failed")];
        assert_eq!(play.at(0, &failing[..1]).len(), 1);
        // It comes and goes, and another begins.
        assert_eq!(play.at(5, &[]), []);
        assert_eq!(play.at(10, &failing[..1]), []);
        assert_eq!(play.at(20, &failing), []);
        assert_eq!(play.at(30, &[("pv-away", "gone")]), [(Event::Began, "pv-away: gone".into(), 1)]);
        let both = "schedule-failing: a failed; b failed".to_owned();
        assert_eq!(play.at(60, &failing), [(Event::Began, both, 2)]);
        // One of two ended. Another one is new.
        assert_eq!(play.at(130, &failing[1..]).len(), 1, "pv-away ended");
        assert_eq!(play.at(135, &failing).len(), 1);
        assert_eq!(play.at(140, &[]), []);
        assert_eq!(play.at(195, &[]).len(), 1);
    }

    #[test]
    fn a_notice_without_a_place_in_the_queue_is_made_again() {
        let mut report = Report::default();
        let low = [crate::convert::problem("space-low", "x")];
        let now = (Instant::now(), Timestamp::now());
        assert_eq!(report.due(&low, Severity::Warning, now).len(), 1);
        assert_eq!(report.due(&low, Severity::Warning, now).len(), 1, "it was not reported");
    }
}
