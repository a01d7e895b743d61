//! Logs go to stderr, in one of three forms.

use crate::settings::LogFormat;
use hindcast_api::{ErrorBody, ErrorKind};
use std::fmt;
use std::io::IsTerminal;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging for this process. `filter` is a list of `level` and `target=level`.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), ErrorBody> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| ErrorBody { kind: ErrorKind::Invalid, message: format!("--log {filter}: {e}") })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
        LogFormat::Journal => builder
            .with_ansi(false)
            .event_format(Journal(Format::default().without_time().with_level(false)))
            .try_init(),
    };
    started.map_err(|e| ErrorBody { kind: ErrorKind::Internal, message: format!("start logging: {e}") })
}

/// Lines without times, with the priority prefix that systemd's journal understands (sd-daemon(3)).
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
