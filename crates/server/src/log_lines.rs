//! Lines of the log on their way to stderr.
//!
//! Whoever reads stderr may stop: a terminal is held, a pipe is full, or a disk hangs. So a thread
//! of its own writes the lines, and no other thread of the server ever waits for such a reader.
//! Lines wait in a queue of limited size. Lines that find the queue full are lost, and counted.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Maximum number of bytes of the lines that wait.
const MAX_WAITING: usize = 1 << 20;

/// Lines that wait for their thread. All lines of the process have one queue.
pub(crate) struct LogLines {
    waiting: Mutex<Waiting>,
    /// There is a line to write.
    arrived: Condvar,
    /// All lines are written.
    written: Condvar,
}

struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Sum of the lengths of `lines`.
    bytes: usize,
    /// Whether the thread is writing a line that is not in `lines` any more.
    writing: bool,
    /// Number of lines that were lost, and that nobody was told of.
    lost: u64,
}

impl LogLines {
    pub(crate) const fn new() -> Self {
        let waiting = Waiting { lines: VecDeque::new(), bytes: 0, writing: false, lost: 0 };
        LogLines { waiting: Mutex::new(waiting), arrived: Condvar::new(), written: Condvar::new() }
    }

    /// Takes a line. Never waits for a reader of the log.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.bytes.saturating_add(line.len()) > MAX_WAITING {
            waiting.lost += 1;
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        self.arrived.notify_one();
    }

    /// Starts the thread that writes to `out`. It calls `tell` with the number of lost lines, once
    /// those before them are written.
    pub(crate) fn start(
        &'static self,
        out: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<()> {
        std::thread::Builder::new().name("log".into()).spawn(move || self.write_all(out, tell)).map(drop)
    }

    fn write_all(&self, mut out: impl Write, tell: impl Fn(u64)) {
        loop {
            let mut waiting = self.waiting.lock();
            waiting.writing = false;
            while waiting.lines.is_empty() && waiting.lost == 0 {
                self.written.notify_all();
                self.arrived.wait(&mut waiting);
            }
            waiting.writing = true;
            let Some(line) = waiting.lines.pop_front() else {
                let lost = std::mem::take(&mut waiting.lost);
                drop(waiting);
                tell(lost);
                continue;
            };
            waiting.bytes -= line.len();
            drop(waiting);
            // Nothing is left to which a failure could be told.
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }

    /// Waits until all lines are written, or until `patience` is over.
    pub(crate) fn finish(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut waiting = self.waiting.lock();
        while waiting.writing || !waiting.lines.is_empty() || waiting.lost > 0 {
            if self.written.wait_until(&mut waiting, end).timed_out() {
                return;
            }
        }
    }
}

/// A writer for whole lines.
pub(crate) struct Line(pub(crate) &'static LogLines);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A reader that takes a line only when it is let.
    struct Reader {
        /// Gets a message when a line comes.
        comes: Sender<()>,
        lets: Receiver<()>,
        lines: Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.comes.send(());
            // An ended test lets everything pass.
            let _ = self.lets.recv();
            let _ = self.lines.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_stopped() {
        let log: &'static LogLines = Box::leak(Box::new(LogLines::new()));
        let ((comes, begun), (go, lets), (lines, written)) = (channel(), channel(), channel());
        let told = Arc::new(Mutex::new(0));
        let tell = {
            let told = told.clone();
            move |lost| {
                *told.lock() += lost;
                log.push(format!("lost {lost}").as_bytes());
            }
        };
        log.start(Reader { comes, lets, lines }, tell).unwrap();
        let number = 3000;
        for n in 0..number {
            // A line of 1 KiB. No reader has taken one yet.
            Line(log).write_all(format!("{n:01024}").as_bytes()).unwrap();
            if n == 0 {
                begun.recv().unwrap();
            }
        }
        log.finish(Duration::from_millis(10));
        assert!(written.try_recv().is_err());
        assert_eq!(*told.lock(), 0, "told only when it can be written");
        drop(go);
        log.finish(Duration::from_secs(60));
        let lines: Vec<String> = written.try_iter().collect();
        let lost = *told.lock();
        let (last, kept) = lines.split_last().unwrap();
        assert_eq!(*last, format!("lost {lost}"));
        assert_eq!(kept.len() as u64 + lost, number);
        assert_eq!(kept.len(), 1025, "the queue was full beside the line that is being read");
        assert!(kept.iter().enumerate().all(|(n, line)| *line == format!("{n:01024}")));
    }
}
