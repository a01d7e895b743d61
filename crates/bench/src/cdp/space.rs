//! Measures the bytes of log for each byte that a client wrote, for each encoding and compression.
//! The same writes are repeated on clones of the same volume.

use super::capture::Trace;
use super::{Rig, keep, postgres};
use crate::database::Database;
use crate::figures::{Figures, Goal};
use crate::nbd::Client;
use crate::units;
use anyhow::{Context, Result};
use hindcast_api::{Anchors, CdpStatus, Compression, CreateClone, Encoding};
use hindcast_plot::{self as plot, Group, Panel};
use serde_json::{Value, json};
use std::fmt::Write as _;

const SECTION: &str = "space";
const ENCODINGS: [Encoding; 3] = [Encoding::Parity, Encoding::Undo, Encoding::Redo];
const COMPRESSIONS: [Compression; 4] =
    [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd];
const BASE: &str = "base";
const BLOCK: u64 = 8 << 10;
const DEPTH: usize = 8;

/// The log that one encoding and compression made of some writes.
struct Taken {
    encoding: Encoding,
    compression: Compression,
    log: CdpStatus,
}

impl Taken {
    /// Returns the bytes of log files for each byte that the client wrote.
    fn stored(&self) -> f64 {
        self.log.stored as f64 / self.log.written as f64
    }

    /// Returns the bytes of content in records for each byte that the client wrote.
    fn payload(&self) -> f64 {
        self.log.payload as f64 / self.log.written as f64
    }
}

/// The name of some writes, and the logs that each encoding made of them.
type Logs = (&'static str, Vec<Taken>);

/// Measures the bytes of log for each encoding and compression.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let mut all = vec![synthetic(rig)?];
    match postgres::capture(&rig.dir(), rig.args.pgbench) {
        Ok(captured) => {
            figures.remark(format!(
                "PostgreSQL ran under pgbench for {} s ({}) on two file systems, one for its tables and one for its \
                 write-ahead log. Their writes were captured once, and made again for each encoding.",
                rig.args.pgbench,
                captured.tps
            ));
            let [tables, wal] = &captured.disks;
            let (tables, wal) = (replay(rig, tables, figures)?, replay(rig, wal, figures)?);
            let both = ("PostgreSQL under pgbench, both", together(&tables.1, &wal.1));
            all.extend([tables, wal, both]);
        }
        Err(error) => {
            figures.remark(format!("PostgreSQL's writes could NOT be captured here: {error:#}"));
        }
    }
    for (what, taken) in &all {
        report(what, taken, figures);
    }
    figures.picture(SECTION, "space", "Bytes of log for each byte written".into(), picture(&all));
    Ok(())
}

fn synthetic(rig: &Rig<'_>) -> Result<Logs> {
    let size = rig.args.scope.size / 4;
    let database = Database::new(size, BLOCK as usize);
    rig.create(BASE, size)?;
    database.load(&mut rig.connect(BASE)?)?;
    let count = size / BLOCK;
    let taken = each(rig, count * BLOCK, |client| database.clone().update(client, count, 1).map(drop))?;
    Ok(("updates of 8 KiB blocks, 3 % changed", taken))
}

fn replay(rig: &Rig<'_>, captured: &postgres::CapturedDisk, figures: &mut Figures) -> Result<Logs> {
    rig.create(BASE, captured.size)?;
    let mut trace = Trace::open(&captured.trace)?;
    send(&mut rig.connect(BASE)?, &mut trace, captured.before)?;
    let count = captured.writes - captured.before;
    let bytes = trace.skip(count)?;
    figures.remark(format!("{} made {count} writes, {}.", captured.what, units::mib(bytes)));
    let taken = each(rig, bytes, |client| {
        let mut trace = Trace::open(&captured.trace)?;
        trace.skip(captured.before)?;
        send(client, &mut trace, count)
    })?;
    Ok((captured.what, taken))
}

/// Repeats the next `count` writes of a trace, and flushes.
fn send(client: &mut Client, trace: &mut Trace, count: u64) -> Result<()> {
    let mut left = count;
    client
        .write(DEPTH, &mut Vec::new(), |out| {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            trace.next(out).map(Some)
        })
        .context("make captured writes again")?;
    client.flush()
}

/// Makes `writes`, which have `bytes` bytes, on a clone of the base for each encoding and
/// compression. Then removes the base.
fn each(rig: &Rig<'_>, bytes: u64, writes: impl Fn(&mut Client) -> Result<()>) -> Result<Vec<Taken>> {
    const CLONE: &str = "clone";
    rig.snapshot(BASE, "before")?;
    rig.settle()?;
    let mut all = Vec::new();
    for encoding in ENCODINGS {
        for compression in COMPRESSIONS {
            let clone = CreateClone { name: CLONE.to_owned(), method: None };
            rig.api().create_clone(BASE, "before", &clone)?;
            rig.keep(CLONE, keep(encoding, compression, Anchors::Never))?;
            writes(&mut rig.connect(CLONE)?)?;
            let log = rig.logged(CLONE, bytes)?;
            all.push(Taken { encoding, compression, log });
            rig.api().delete_volume(CLONE, hindcast_api::DeleteVolume { force: true, now: true })?;
        }
    }
    rig.settle()?;
    rig.delete(BASE, &["before".to_owned()])?;
    rig.remove(BASE)?;
    Ok(all)
}

/// Adds up the logs of two volumes, as if the volumes were one.
fn together(one: &[Taken], other: &[Taken]) -> Vec<Taken> {
    let sum = |a: &Taken, b: &Taken| Taken {
        log: CdpStatus {
            records: a.log.records + b.log.records,
            written: a.log.written + b.log.written,
            payload: a.log.payload + b.log.payload,
            stored: a.log.stored + b.log.stored,
            ..a.log.clone()
        },
        encoding: a.encoding,
        compression: a.compression,
    };
    one.iter().zip(other).map(|(a, b)| sum(a, b)).collect()
}

fn picture(all: &[Logs]) -> String {
    let group = |taken: &[Taken], compression: Compression| Group {
        label: compression.name().to_owned(),
        values: taken.iter().filter(|t| t.compression == compression).map(|t| Some(t.stored())).collect(),
    };
    let panels: Vec<Panel> = all
        .iter()
        .map(|(what, taken)| Panel {
            heading: (*what).to_owned(),
            groups: COMPRESSIONS.iter().map(|compression| group(taken, *compression)).collect(),
        })
        .collect();
    let encodings = ENCODINGS.map(Encoding::name);
    plot::bars("Bytes of log for each byte written (shorter is better)", &encodings, &panels)
}

fn report(what: &str, taken: &[Taken], figures: &mut Figures) {
    let mut text = format!(
        "{what}: bytes of log for each byte written\n\n\
         | encoding | compression | records | written | log | payload / written | log / written |\n\
         |---|---|--:|--:|--:|--:|--:|\n"
    );
    for t in taken {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.4} | {:.4} |",
            t.encoding.name(),
            t.compression.name(),
            t.log.records,
            units::mib(t.log.written),
            units::mib(t.log.stored),
            t.payload(),
            t.stored()
        );
    }
    let data: Vec<Value> = taken
        .iter()
        .map(|t| {
            json!({
                "encoding": t.encoding, "compression": t.compression, "records": t.log.records,
                "written": t.log.written, "payload": t.log.payload, "stored": t.log.stored,
            })
        })
        .collect();
    figures.table(SECTION, text, json!({ "writes": what, "logs": data }));
    let smallest = |encoding: Encoding| {
        taken.iter().filter(|t| t.encoding == encoding).map(|t| t.stored()).fold(f64::INFINITY, f64::min)
    };
    let of = |encoding: Encoding, compression: Compression| {
        let found = taken.iter().find(|t| t.encoding == encoding && t.compression == compression);
        found.map_or(f64::NAN, |t| t.stored())
    };
    let mut add = |name: &str, ratio| figures.add(SECTION, format!("{what}: {name}"), ratio, "×", Goal::None);
    let parity_to_undo = |compression| of(Encoding::Parity, compression) / of(Encoding::Undo, compression);
    add("parity, zero-run to undo, zero-run", parity_to_undo(Compression::ZeroRun));
    add("parity, zstd to undo, zstd", parity_to_undo(Compression::Zstd));
    let smallest = smallest(Encoding::Parity) / smallest(Encoding::Undo);
    add("the smallest parity to the smallest undo", smallest);
}
