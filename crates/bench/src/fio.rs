//! Runs fio with its nbd engine, and reads its JSON output.

use crate::samples::Outcome;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The amount of work of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    /// A time in seconds.
    Seconds(u64),
    /// A number of bytes.
    Bytes(u64),
}

/// When fio sends NBD_CMD_FLUSH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// fio sends no flush.
    Never,
    /// fio sends one flush at the end. The measured time includes it.
    AtEnd,
    /// fio sends a flush after every write.
    Each,
}

/// One run of fio.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The value of fio's `rw`: randread, randwrite, read, write.
    pub(crate) rw: &'static str,
    /// Size of a request in bytes.
    pub(crate) block: u64,
    /// Number of requests in flight.
    pub(crate) depth: u32,
    /// Amount of work.
    pub(crate) amount: Amount,
    /// When fio sends flushes.
    pub(crate) flush: Flush,
    /// Seed of the random offsets. It is the same for every server in a round.
    pub(crate) seed: u64,
    /// Whether random offsets visit each block only once.
    pub(crate) once: bool,
    /// Limit of requests per second.
    pub(crate) rate: Option<u64>,
}

impl Job {
    /// Returns a job that writes `bytes` bytes and flushes at the end.
    pub(crate) fn writes(rw: &'static str, block: u64, depth: u32, bytes: u64, seed: u64) -> Job {
        let amount = Amount::Bytes(bytes);
        Job { rw, block, depth, amount, flush: Flush::AtEnd, seed, once: false, rate: None }
    }

    /// Returns a job of random reads of 4 KiB with 32 in flight.
    pub(crate) fn reads(amount: Amount, once: bool, seed: u64) -> Job {
        Job { rw: "randread", block: 4096, depth: 32, amount, flush: Flush::Never, seed, once, rate: None }
    }
}

/// A running fio. Dropping it kills the process.
pub(crate) struct Running {
    child: Child,
    output: std::path::PathBuf,
    each: bool,
}

/// Starts fio against `uri`. Its output goes to a file in `scratch`.
pub(crate) fn spawn(job: &Job, uri: &str, scratch: &Path) -> Result<Running> {
    let output = scratch.join("fio.json");
    let file = File::create(&output).with_context(|| format!("create {}", output.display()))?;
    let mut command = Command::new("fio");
    command
        .args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--eta=never", "--norandommap=1"])
        .args(["--random_generator=tausworthe64", "--randrepeat=1"])
        .arg(format!("--randseed={}", job.seed))
        .arg(format!("--norandommap={}", u8::from(!job.once)))
        .arg(format!("--uri={uri}"))
        .arg(format!("--rw={}", job.rw))
        .arg(format!("--bs={}", job.block))
        .arg(format!("--iodepth={}", job.depth));
    match job.amount {
        Amount::Seconds(s) => command.arg("--time_based=1").arg(format!("--runtime={s}")),
        Amount::Bytes(b) => command.arg(format!("--io_size={b}")),
    };
    if let Some(rate) = job.rate {
        // fio makes the load in a thread. A process of its own would go on after fio is killed.
        command.arg("--thread=1").arg(format!("--rate_iops={rate}"));
    }
    match job.flush {
        Flush::Never => &mut command,
        Flush::AtEnd => command.arg("--end_fsync=1"),
        Flush::Each => command.arg("--fsync=1"),
    };
    // The errors go to a file and not to the terminal. fio reports each request that fails because
    // its server was killed.
    let errors = File::create(scratch.join("fio.err")).context("create fio's error file")?;
    // fio leaves state files in its working directory.
    command.current_dir(scratch).stdin(Stdio::null()).stdout(file).stderr(errors);
    let child = command.spawn().context("start fio: is it installed?")?;
    Ok(Running { child, output, each: job.flush == Flush::Each })
}

/// Runs fio to its end.
pub(crate) fn run(job: &Job, uri: &str, scratch: &Path) -> Result<Outcome> {
    spawn(job, uri, scratch)?.wait(Duration::from_millis(20), || Ok(()))
}

impl Running {
    /// Waits until fio has ended. Calls `watch` every `interval` until then.
    pub(crate) fn wait(
        mut self,
        interval: Duration,
        mut watch: impl FnMut() -> Result<()>,
    ) -> Result<Outcome> {
        let status = loop {
            if let Some(status) = self.child.try_wait().context("wait for fio")? {
                break status;
            }
            watch()?;
            std::thread::sleep(interval);
        };
        let text = std::fs::read_to_string(&self.output).context("read fio's output")?;
        if !status.success() {
            bail!("fio failed ({status}): {}", text.chars().take(2000).collect::<String>());
        }
        parse(&text, self.each)
    }

    /// Returns whether fio has ended by itself.
    pub(crate) fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look after fio")?.is_some())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // On the normal path the process has been reaped. Both calls are harmless then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the results from fio's output. fio prints messages before its JSON.
fn parse(text: &str, flush_each: bool) -> Result<Outcome> {
    let start = text.find('{').context("fio printed no JSON")?;
    let document: Value = serde_json::from_str(&text[start..]).context("parse fio's JSON")?;
    let job = &document["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        bail!("fio reports error {}", job["error"]);
    }
    let side = if job["read"]["total_ios"].as_u64().unwrap_or(0) > 0 { &job["read"] } else { &job["write"] };
    let number =
        |value: &Value, what: &str| value.as_f64().with_context(|| format!("fio's JSON lacks {what}"));
    let latency = if flush_each { &job["sync"]["lat_ns"] } else { &side["clat_ns"] };
    let requests = number(&side["total_ios"], "total_ios")?;
    let milliseconds = number(&side["runtime"], "runtime")?;
    if requests < 1.0 || milliseconds < 1.0 {
        bail!("fio did nothing: {requests} requests in {milliseconds} ms");
    }
    Ok(Outcome {
        requests: requests as u64,
        iops: requests * 1000.0 / milliseconds,
        megabytes: number(&side["io_bytes"], "io_bytes")? / milliseconds / 1000.0,
        p99_us: Some(number(&latency["percentile"]["99.000000"], "the 99th percentile")? / 1000.0),
        max_us: Some(number(&latency["max"], "the longest latency")? / 1000.0),
        client_cpu: number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"fio: connected to NBD server
{"jobs":[{"error":0,"usr_cpu":10.5,"sys_cpu":20.0,
 "read":{"total_ios":0},
 "write":{"total_ios":1000,"runtime":500,"io_bytes":4096000,"clat_ns":{"max":8000,"percentile":{"99.000000":7000}}},
 "sync":{"lat_ns":{"max":9500,"percentile":{"99.000000":9000}}}}]}"#;

    #[test]
    fn reads_the_busy_side() {
        let outcome = parse(SAMPLE, false).unwrap();
        assert_eq!(outcome.requests, 1000);
        assert_eq!(outcome.iops, 2000.0);
        assert_eq!(outcome.megabytes, 8.192);
        assert_eq!(outcome.p99_us, Some(7.0));
        assert_eq!(outcome.max_us, Some(8.0));
        assert_eq!(outcome.client_cpu, 30.5);
        assert_eq!(parse(SAMPLE, true).unwrap().p99_us, Some(9.0));
    }

    #[test]
    fn refuses_what_is_no_result() {
        assert!(parse("fio: failed", false).is_err());
        assert!(parse(r#"{"jobs":[{"error":5}]}"#, false).is_err());
        assert!(
            parse(r#"{"jobs":[{"error":0,"read":{"total_ios":0},"write":{"total_ios":0}}]}"#, false).is_err()
        );
    }
}
