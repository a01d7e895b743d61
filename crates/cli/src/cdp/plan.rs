//! `hindcast cdp plan`: evaluates the cost model for a user.

use super::curve::{self, Point};
use super::measure::{self, Measured};
use crate::failure::Failure;
use crate::output::list;
use crate::session::Global;
use hindcast_api::{self as api, CdpMeasured, Size};
use hindcast_engine::cdp::model::{
    BlockModel, Constants, Load, PRICE_PER_GIGABYTE, PRICE_PER_HOUR, VolumeModel, Weights, native_recovery,
};
use hindcast_plot::{Curve, grouped};
use hindcast_server::Same;
use serde::Serialize;
use std::path::PathBuf;

const DAY: f64 = 86400.0;
const HOUR: f64 = 3600.0;

/// Largest block, in bytes, for which the benchmark makes records.
const MAX_MEASURED: f64 = 16.0 * 1024.0 * 1024.0;

const EXAMPLES: &str = "\
Examples:
  hindcast cdp plan db
  hindcast cdp plan --measure --io-rate 200M
  hindcast cdp plan --block-size 4K --record-size 82 --decode-time 0.8us --xor-time 0.2us --io-rate 60M
  hindcast cdp plan --measure --beta 10000000 --svg plan.svg      an hour of downtime costs ten million

A recovery starts at an anchor and replays the writes after it. So more anchors make a recovery \
faster, and take more space. The command uses the cost model of ST-CDP, whose symbols are in the \
first column of the output. The last column shows where each value is from: an option (given), the \
history of VOLUME or --measure (measured), the settings of the server and of VOLUME (configured), or \
a default (assumed). Without VOLUME the command needs no server.";

/// Compute how often to insert anchors into a history, so that recovery time and space cost least
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Volume whose history, as the server measures it, gives the values of omitted options
    #[arg(conflicts_with = "measure")]
    volume: Option<String>,
    /// S_blk: size of a data block, which is the chunk size of the volume
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Size>,
    /// S_log: average size of a compressed record
    #[arg(long, value_name = "SIZE")]
    record_size: Option<Size>,
    /// T_dec: time to decode a record, such as 2.5us
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    decode_time: Option<f64>,
    /// T_xor: time to XOR a record onto a block, such as 0.2us
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    xor_time: Option<f64>,
    /// IO_rate: bytes per second that recovery reads
    #[arg(long, value_name = "SIZE")]
    io_rate: Option<Size>,
    /// W_total: writes of blocks per day
    #[arg(long, value_name = "N", value_parser = positive)]
    writes_per_day: Option<f64>,
    /// N: distinct blocks written between two anchors
    #[arg(long, value_name = "N", value_parser = positive)]
    distinct_blocks: Option<f64>,
    /// Price of an hour of recovery [default: with VOLUME serve --cdp-beta, otherwise 1000]
    #[arg(long, value_name = "PRICE", value_parser = price)]
    beta: Option<f64>,
    /// Price of a gigabyte of storage, in the same currency [default: with VOLUME serve
    /// --cdp-gamma, otherwise 0.1]
    #[arg(long, value_name = "PRICE", value_parser = price)]
    gamma: Option<f64>,
    /// M_max: maximum writes between two anchors [default: volume set --anchor-max of VOLUME]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    m_max: Option<u64>,
    /// Memory for recovery; it gives M_max for a system that holds all blocks in memory at once,
    /// which Hindcast does not
    #[arg(long, value_name = "SIZE", conflicts_with = "m_max")]
    memory: Option<Size>,
    /// Measure decoding, XOR and the size of a record on this machine, with the codec of the CDP
    /// log; it takes about a second
    #[arg(long)]
    measure: bool,
    /// With --measure: share of a block that one write changes, in per cent
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent, requires = "measure")]
    changed: f64,
    /// With --measure: content of the records
    #[arg(long, value_name = "parity|undo|redo", default_value = "parity", requires = "measure")]
    encoding: api::Encoding,
    /// With --measure: compression of the records
    #[arg(long, value_name = "none|zero-run|lz4|zstd", default_value = "zero-run", requires = "measure")]
    compression: api::Compression,
    /// Also write the curves to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Parses a time with a unit into seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a time: write for example 800ns, 2.5us, 1ms or 1s");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    number.parse::<f64>().map(|n| n * unit).map_err(|_| wrong())
}

fn number(text: &str, ok: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n.is_finite() && ok(n) => Ok(n),
        _ => Err(format!("{text:?} is not {what}")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0, "a positive number")
}

fn price(text: &str) -> Result<f64, String> {
    number(text, |n| n >= 0.0, "a price: a number of at least 0")
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0 && n <= 100.0, "a share in per cent: more than 0, at most 100")
}

/// Origin of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Given,
    Measured,
    /// The configuration of the server has the value.
    Configured,
    Assumed,
}

/// An input of the model, in bytes, seconds or writes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Input {
    value: f64,
    source: Source,
}

fn pick(given: Option<f64>, measured: Option<f64>, assumed: f64) -> Input {
    match (given, measured) {
        (Some(value), _) => Input { value, source: Source::Given },
        (None, Some(value)) => Input { value, source: Source::Measured },
        (None, None) => Input { value: assumed, source: Source::Assumed },
    }
}

/// Works like [`pick`], for a price. Prices are never measured: the value from the server is a
/// configured one.
fn price_of(given: Option<f64>, configured: Option<f64>, assumed: f64) -> Input {
    let input = pick(given, configured, assumed);
    match input.source {
        Source::Measured => Input { source: Source::Configured, ..input },
        _ => input,
    }
}

fn bytes(size: Option<Size>) -> Option<f64> {
    size.map(|size| size.0 as f64)
}

#[derive(Debug, Serialize)]
struct Inputs {
    block_size: Input,
    record_size: Input,
    decode_seconds: Input,
    xor_seconds: Input,
    io_bytes_per_second: Input,
    writes_per_day: Input,
    distinct_blocks: Input,
    price_per_hour: Input,
    price_per_gigabyte: Input,
}

impl Inputs {
    /// Collects the inputs. The defaults describe a current machine: it decodes 1 GB/s, XORs 10
    /// GB/s and reads 200 MB/s. The default volume gets a million writes a day, each of which
    /// changes five percent of a block.
    fn gather(args: &Args, running: Option<&CdpMeasured>) -> Result<Inputs, Failure> {
        let block_size = pick(bytes(args.block_size), running.map(|r| r.block_size), 16384.0);
        if args.measure && !(512.0..=MAX_MEASURED).contains(&block_size.value) {
            return Err(Failure::usage("--measure needs a --block-size from 512 to 16M"));
        }
        let measure = || {
            let (encoding, compression) = (args.encoding.same(), args.compression.same());
            measure::run(block_size.value as usize, args.changed / 100.0, encoding, compression)
        };
        let measured = args.measure.then(measure).transpose()?;
        let (here, there) = (measured.as_ref(), running);
        let of = |ours: fn(&Measured) -> f64, theirs: fn(&CdpMeasured) -> f64| {
            here.map(ours).or(there.map(theirs))
        };
        let theirs = |value: fn(&CdpMeasured) -> f64| there.map(value);
        Ok(Inputs {
            block_size,
            record_size: pick(
                bytes(args.record_size),
                of(|m| m.record_size, |r| r.record_size),
                block_size.value / 20.0,
            ),
            decode_seconds: pick(
                args.decode_time,
                of(|m| m.decode_seconds, |r| r.decode_seconds),
                block_size.value / 1e9,
            ),
            xor_seconds: pick(
                args.xor_time,
                of(|m| m.xor_seconds, |r| r.xor_seconds),
                block_size.value / 1e10,
            ),
            io_bytes_per_second: pick(bytes(args.io_rate), theirs(|r| r.io_bytes_per_second), 200e6),
            writes_per_day: pick(args.writes_per_day, theirs(|r| r.writes_per_day), 1e6),
            distinct_blocks: pick(args.distinct_blocks, theirs(|r| r.distinct_blocks), 1e4),
            price_per_hour: price_of(args.beta, theirs(|r| r.price_per_hour), PRICE_PER_HOUR),
            price_per_gigabyte: price_of(args.gamma, theirs(|r| r.price_per_gigabyte), PRICE_PER_GIGABYTE),
        })
    }

    fn constants(&self) -> Constants {
        Constants {
            s_blk: self.block_size.value,
            s_log: self.record_size.value,
            t_dec: self.decode_seconds.value,
            t_xor: self.xor_seconds.value,
            io_rate: self.io_bytes_per_second.value,
        }
    }

    fn table(&self) -> String {
        let size = |v: f64| format!("{} B", grouped(v));
        let rows: [(&str, &str, Input, String); 9] = [
            ("S_blk", "block size", self.block_size, size(self.block_size.value)),
            ("S_log", "record size", self.record_size, size(self.record_size.value)),
            ("T_dec", "decoding a record", self.decode_seconds, time(self.decode_seconds.value)),
            ("T_xor", "XOR of a record", self.xor_seconds, time(self.xor_seconds.value)),
            (
                "IO_rate",
                "reading",
                self.io_bytes_per_second,
                format!("{:.1} MB/s", self.io_bytes_per_second.value / 1e6),
            ),
            ("W_total", "writes a day", self.writes_per_day, grouped(self.writes_per_day.value)),
            (
                "N",
                "distinct blocks between anchors",
                self.distinct_blocks,
                grouped(self.distinct_blocks.value),
            ),
            ("beta", "price of an hour", self.price_per_hour, money(self.price_per_hour.value)),
            ("gamma", "price of a gigabyte", self.price_per_gigabyte, money(self.price_per_gigabyte.value)),
        ];
        let rows = rows.into_iter().map(|(symbol, name, input, value)| {
            let source = match input.source {
                Source::Given => "given",
                Source::Measured => "measured",
                Source::Configured => "configured",
                Source::Assumed => "assumed",
            };
            vec![symbol.to_owned(), name.to_owned(), value, source.to_owned()]
        });
        list(&["SYMBOL", "INPUT", "VALUE", "FROM"], &[2], rows)
    }
}

/// Results for one block: parities between anchors.
#[derive(Debug, Serialize)]
struct SubLog {
    d_0: f64,
    d: u64,
    compression_ratio: f64,
    recovery_seconds: f64,
    bytes_per_write: f64,
    /// Seconds of a recovery to a moment a day ago, without anchors.
    native_recovery_seconds: f64,
    curve: Vec<Point>,
}

/// Results for a volume: writes between anchors.
#[derive(Debug, Serialize)]
struct Interval {
    /// Null if recovery time costs nothing. Without a bound there would then be no anchor.
    m_0: f64,
    m_max: Option<u64>,
    m: u64,
    anchors_per_day: f64,
    recovery_seconds: f64,
    bytes_per_day: f64,
    cost_per_day: f64,
    curve: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Plan {
    inputs: Inputs,
    sub_log: SubLog,
    interval: Interval,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let running = match &args.volume {
        Some(volume) => Some(global.session()?.client.cdp_measured(volume)?),
        None => None,
    };
    let plan = plan(args, running.as_ref())?;
    if let Some(path) = &args.svg {
        let points = plan.points();
        let picture = hindcast_plot::curves(&plan.curves(&points));
        std::fs::write(path, picture)
            .map_err(|e| Failure::Failed(format!("write {}: {e}", path.display())))?;
    }
    global.output().show(&plan, Plan::text)
}

fn plan(args: &Args, running: Option<&CdpMeasured>) -> Result<Plan, Failure> {
    let inputs = Inputs::gather(args, running)?;
    let constants = inputs.constants();
    let load = Load { w_total: inputs.writes_per_day.value, n: inputs.distinct_blocks.value };
    let weights = Weights::priced(inputs.price_per_hour.value, inputs.price_per_gigabyte.value);
    let usage = |e: hindcast_engine::Error| Failure::usage(e.to_string());
    let block = BlockModel::new(constants, 1.0).map_err(usage)?;
    let volume = VolumeModel::new(constants, load, weights).map_err(usage)?;

    let d = block.best_length();
    let sub_log = SubLog {
        d_0: block.best(),
        d,
        compression_ratio: constants.ratio(),
        recovery_seconds: block.recovery(d as f64),
        bytes_per_write: block.space(d as f64),
        native_recovery_seconds: native_recovery(&constants, load.w_total / load.n / DAY, DAY),
        curve: curve::sample(d as f64, |d| block.cost(d)),
    };
    let by_memory = || bytes(args.memory).map(|memory| constants.m_max(memory));
    let m_max = args.m_max.or_else(by_memory).or(running.and_then(|r| r.max_distance));
    if m_max.is_none() && !volume.best().is_finite() {
        return Err(Failure::usage(
            "with --beta 0 the model gives no interval between anchors: give --m-max or --memory",
        ));
    }
    let m = volume.interval(m_max.unwrap_or(u64::MAX));
    let middle = if volume.best().is_finite() { volume.best() } else { m as f64 };
    let interval = Interval {
        m_0: volume.best(),
        m_max,
        m,
        anchors_per_day: load.w_total / m as f64,
        recovery_seconds: volume.recovery(m as f64),
        bytes_per_day: volume.space(m as f64),
        cost_per_day: volume.cost(m as f64),
        curve: curve::sample(middle, |m| volume.cost(m)),
    };
    Ok(Plan { inputs, sub_log, interval })
}

impl Plan {
    fn points(&self) -> [Vec<(f64, f64)>; 2] {
        [&self.sub_log.curve, &self.interval.curve].map(|points| curve::pairs(points))
    }

    fn curves<'a>(&self, [block, volume]: &'a [Vec<(f64, f64)>; 2]) -> [Curve<'a>; 2] {
        [
            Curve {
                heading: "One block: recovery time × space, by records between anchors",
                symbol: "d",
                points: block,
                chosen: self.sub_log.d as f64,
                bound: None,
            },
            Curve {
                heading: "The volume: cost of a day, by writes between anchors",
                symbol: "M",
                points: volume,
                chosen: self.interval.m as f64,
                bound: self.interval.m_max.map(|bound| bound as f64),
            },
        ]
    }

    fn text(&self) -> String {
        let [block, volume] = self.curves(&self.points()).map(|curve| curve::text(&curve));
        let (s, i) = (&self.sub_log, &self.interval);
        let bound = if i.m_max == Some(i.m) { ", which is M_max" } else { "" };
        let m_max = i.m_max.map_or_else(|| "none".into(), |bound| grouped(bound as f64));
        let m_0 = if i.m_0.is_finite() { grouped(i.m_0) } else { "unlimited".into() };
        format!(
            "{}\n\n{block}\n\
             d_0 = {:.1}: an anchor after {} records of a block (compression ratio {:.1})\n\
             \x20 recovery of a block {}; {} B kept for each write\n\
             \x20 without anchors, to a moment a day ago: {}\n\n{volume}\n\
             M_0 = {m_0}, M_max = {m_max}: an anchor after {} writes{bound}\n\
             \x20 {:.1} anchors a day; recovery of the volume {}; {} a day; cost {} a day",
            self.inputs.table(),
            s.d_0,
            grouped(s.d as f64),
            s.compression_ratio,
            time(s.recovery_seconds),
            grouped(s.bytes_per_write),
            time(s.native_recovery_seconds),
            grouped(i.m as f64),
            i.anchors_per_day,
            time(i.recovery_seconds),
            Size(i.bytes_per_day as u64),
            money(i.cost_per_day),
        )
    }
}

/// Formats a time with three digits and a readable unit.
fn time(seconds: f64) -> String {
    const UNITS: [(f64, &str); 6] =
        [(DAY, "d"), (HOUR, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let fits = UNITS.iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = fits.copied().unwrap_or((1e-9, "ns"));
    let value = seconds / unit;
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {name}")
}

fn money(price: f64) -> String {
    if price >= 100.0 { grouped(price) } else { format!("{price:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn planned(line: &str) -> Plan {
        let line = Line::try_parse_from(format!("plan {line}").split_whitespace()).unwrap();
        plan(&line.args, None).unwrap()
    }

    /// Inputs under which the model has the optima of the paper's figures 9, 12 and 13. The model's
    /// own tests derive the values that the figures omit.
    const FIGURE_9: &str = "--block-size 4K --record-size 82 --decode-time 161us --xor-time 53.7us --io-rate 267163 \
                            --writes-per-day 1220703 --distinct-blocks 708.6 --gamma 10";

    #[test]
    fn the_papers_figures_come_out() {
        let twelve = planned(&format!("{FIGURE_9} --beta 1000 --m-max 1000000"));
        assert_eq!(twelve.sub_log.d, 77);
        // Figures 10 and 11: C = 50, and decoding takes 0.0072 and 0.0028 of the time that reading
        // a block takes.
        for (rest, d) in [
            ("--block-size 16K --record-size 328 --decode-time 331us --xor-time 110us", 86),
            ("--block-size 64K --record-size 1311 --decode-time 515us --xor-time 171us", 94),
        ] {
            assert_eq!(planned(&format!("{rest} --io-rate 267163")).sub_log.d, d);
        }
        // The flags take whole bytes: within a thousandth.
        let near = |m: u64, paper: f64| (m as f64 / paper - 1.0).abs() < 1e-3;
        assert!(near(twelve.interval.m, 227_629.0), "{}", twelve.interval.m);
        let thirteen = planned(&format!("{FIGURE_9} --beta 10000000 --m-max 1000000"));
        assert!(near(thirteen.interval.m, 225_471.0), "{}", thirteen.interval.m);
        let bounded = planned(&format!("{FIGURE_9} --beta 1000 --m-max 100000"));
        assert_eq!(bounded.interval.m, 100_000);
        assert!(bounded.text().contains("100,000 writes, which is M_max"), "{}", bounded.text());
    }

    #[test]
    fn what_is_assumed_and_measured_is_told() {
        let assumed = planned("--io-rate 100M");
        assert_eq!(assumed.inputs.io_bytes_per_second.source, Source::Given);
        assert_eq!(assumed.inputs.decode_seconds.source, Source::Assumed);
        let measured = planned("--measure --block-size 4K --xor-time 1us");
        assert_eq!(measured.inputs.decode_seconds.source, Source::Measured);
        assert_eq!(measured.inputs.xor_seconds.source, Source::Given);
        assert!(measured.inputs.decode_seconds.value > 0.0 && measured.inputs.record_size.value < 2048.0);
        let json = serde_json::to_value(&measured).unwrap();
        assert_eq!(json["inputs"]["record_size"]["source"], "measured");
        assert_eq!(json["sub_log"]["curve"].as_array().unwrap().len(), 65);
    }

    #[test]
    fn free_time_leaves_the_bound() {
        let free = planned("--beta 0 --m-max 5000");
        assert_eq!(free.interval.m, 5000);
        assert!(free.text().contains("M_0 = unlimited"));
        assert!(serde_json::to_value(&free).unwrap()["interval"]["m_0"].is_null());
    }

    #[test]
    fn values_have_units() {
        for (text, value) in [("800ns", 8e-7), ("2.5us", 2.5e-6), ("1ms", 1e-3), ("1s", 1.0)] {
            assert!((seconds(text).unwrap() / value - 1.0).abs() < 1e-12, "{text}");
        }
        for bad in ["", "5", "us", "1.2.3us", "-1us", "1h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        for (seconds, text) in [(1.5e-7, "150 ns"), (2.34e-5, "23.4 µs"), (0.5, "500 ms"), (90.0, "1.50 min")]
        {
            assert_eq!(time(seconds), text);
        }
    }
}
