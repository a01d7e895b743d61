//! The log. It goes to stderr, in one of three formats.

use crate::events::{self, Collector, Events};
use crate::log_lines::{Line, LogLines};
use crate::settings::LogFormat;
use hindcast_api::{ErrorBody, ErrorKind};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Lines of this process for stderr.
static LINES: LogLines = LogLines::new();
/// Longest time that the end of the process waits for the reader of stderr.
const FINISH: Duration = Duration::from_secs(1);

/// A started log. A drop waits until the lines are written.
pub(crate) struct Log;

impl Drop for Log {
    fn drop(&mut self) {
        finish();
    }
}

/// Waits until the lines of the log are written, but no longer than [`FINISH`].
pub(crate) fn finish() {
    LINES.finish(FINISH);
}

/// Starts logging for this process. `filter` is a list of `level` and `target=level`. Lines that
/// are events also go to `events`, whatever the filter says.
pub(crate) fn start(filter: &str, format: LogFormat, events: Events) -> Result<Log, ErrorBody> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| ErrorBody { kind: ErrorKind::Invalid, message: format!("--log {filter}: {e}") })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Escaped(Line(&LINES)));
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_ansi(false).boxed(),
        LogFormat::Journal => lines
            .with_ansi(false)
            .event_format(Journal(Format::default().without_time().with_level(false)))
            .boxed(),
    };
    let layers = lines.with_filter(filter).and_then(Collector(events).with_filter(events::only()));
    let started = tracing_subscriber::registry().with(layers).try_init();
    let failed = |e: &dyn fmt::Display| ErrorBody {
        kind: ErrorKind::Internal,
        message: format!("start logging: {e}"),
    };
    started.map_err(|e| failed(&e))?;
    let lost = |lines| tracing::warn!(lines, "lines of the log were lost, because stderr was not read");
    LINES.start(std::io::stderr(), lost).map_err(|e| failed(&e))?;
    Ok(Log)
}

/// A writer that escapes invisible characters that change the appearance of a line, in the form
/// `\u202e`, which JSON also has. Clients choose names that appear in lines of the log.
struct Escaped<W>(W);

/// Returns whether a character reorders or hides the text around it, or controls a terminal.
fn is_misleading(c: char) -> bool {
    let formats = ['\u{61c}', '\u{feff}'].contains(&c);
    let ranges =
        ['\u{80}'..='\u{9f}', '\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}'];
    formats || ranges.iter().any(|range| range.contains(&c))
}

impl<W: Write> Write for Escaped<W> {
    /// Writes a line. `line` is always a complete line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if !line.is_ascii() && text.contains(is_misleading) => {
                let mut clean = String::with_capacity(text.len() + 16);
                for c in text.chars() {
                    match is_misleading(c) {
                        true => clean.push_str(&format!("\\u{:04x}", u32::from(c))),
                        false => clean.push(c),
                    }
                }
                self.0.write_all(clean.as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A format without times, with the priority prefix that systemd's journal understands
/// (sd-daemon(3)).
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_changes_how_a_line_looks() {
        let written = |text: &str| {
            let mut out = Escaped(Vec::new());
            out.write_all(text.as_bytes()).unwrap();
            String::from_utf8(out.0).unwrap()
        };
        assert_eq!(written("iqn.a\u{202e}gnp\u{200b}.b\u{9b}1m"), "iqn.a\\u202egnp\\u200b.b\\u009b1m");
        for plain in ["iqn.2026-11.com.example:host\n", "Zoë 東京 مرحبا\n"] {
            assert_eq!(written(plain), plain);
        }
    }
}
