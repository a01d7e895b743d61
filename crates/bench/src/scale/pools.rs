//! Measures large empty pools, to show what the size alone costs when a pool is opened.

use super::Args;
use super::growth::{Growth, last_slope};
use super::pass::mebibytes;
use crate::figures::Figures;
use crate::process;
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, rig};
use anyhow::{Context, Result};
use hindcast_api::AddPv;
use serde_json::json;
use std::fmt::Write as _;
use std::time::Instant;

const SECTION: &str = "pools";
/// Largest size of a physical volume in bytes. A file on ext4 cannot be longer than 16 TiB.
const PV: u64 = 12 << 40;
const EXPORT: &str = "thin";
/// Size in bytes of the only volume, which no client writes to.
const VOLUME: u64 = 1 << 40;

/// The costs of one pool: sizes in bytes, and memory in MiB.
struct Opened {
    size: u64,
    pvs: u64,
    /// Milliseconds until NBD answers: after an orderly stop, and after SIGKILL.
    stopped: f64,
    killed: f64,
    resident: f64,
    peak: f64,
}

/// Measures the time to open large empty pools, and the memory of the server then.
pub(super) fn run(common: &Common, args: &Args, scratch: &Scratch, figures: &mut Figures) -> Result<()> {
    let mut all = Vec::new();
    for size in args.pools() {
        eprintln!("a pool of {} GiB", size >> 30);
        all.push(open(common, args, scratch, size)?);
    }
    let data = all.iter().map(|o| {
        json!({
            "bytes": o.size, "pvs": o.pvs, "stopped_ms": o.stopped, "killed_ms": o.killed,
            "resident_mib": o.resident, "peak_mib": o.peak,
        })
    });
    figures.table(SECTION, table(&all), data.collect());
    Ok(())
}

fn open(common: &Common, args: &Args, scratch: &Scratch, size: u64) -> Result<Opened> {
    let dir = scratch.join("pool");
    let hindcast = Hindcast::new(common, &dir, size.min(PV), args.journal)?;
    let mut server = hindcast.start(EXPORT)?;
    let mut pvs = 1;
    while pvs * PV < size {
        let size = Some((size - pvs * PV).min(PV));
        hindcast.api().add_pv(&AddPv {
            path: format!("pv-{pvs}.img"),
            size,
            force: false,
            dedicated: false,
        })?;
        pvs += 1;
    }
    hindcast.create_volume(EXPORT, VOLUME, 16 << 10)?;
    process::settle(server.pid(), rig::SETTLE_LIMIT)?;
    let mut times = Vec::new();
    let mut memory = process::Memory::default();
    for kill in [false, true] {
        if kill {
            server.kill()?
        } else {
            server.stop()?
        };
        let start = Instant::now();
        server = hindcast.launch(EXPORT)?;
        server.wait_for(&hindcast, EXPORT)?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        memory = process::memory(server.pid())?;
        process::settle(server.pid(), rig::SETTLE_LIMIT)?;
    }
    drop(server);
    std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    let (resident, peak) = (mebibytes(memory.resident), mebibytes(memory.peak));
    Ok(Opened { size, pvs, stopped: times[0], killed: times[1], resident, peak })
}

fn table(all: &[Opened]) -> String {
    let mut text = String::from(
        "Pools of sparse files with one volume that nobody writes to:\n\n\
         | pool, GiB | physical volumes | open after a stop, ms | after SIGKILL, ms | resident, MiB | peak, MiB |\n\
         |--:|--:|--:|--:|--:|--:|\n",
    );
    for o in all {
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} | {:.1} | {:.1} |",
            o.size >> 30,
            o.pvs,
            o.stopped,
            o.killed,
            o.resident,
            o.peak
        );
    }
    let growth = |of: fn(&Opened) -> f64| {
        let points: Vec<(f64, f64)> = all.iter().map(|o| (o.size as f64, of(o))).collect();
        let named = |slope| format!("{} ({slope:.2})", Growth::of(slope).name());
        last_slope(&points).map_or_else(|| "–".to_owned(), named)
    };
    let _ = writeln!(
        text,
        "| growth | | {} | {} | {} | {} |",
        growth(|o| o.stopped),
        growth(|o| o.killed),
        growth(|o| o.resident),
        growth(|o| o.peak)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_size() {
        let of = |tera: u64, stopped, resident| Opened {
            size: tera << 40,
            pvs: 1,
            stopped,
            killed: 0.0,
            resident,
            peak: resident,
        };
        let text = table(&[of(1, 100.0, 10.0), of(10, 100.0, 100.0)]);
        assert!(text.contains("| 10240 | 1 | 100 | 0 | 100.0 | 100.0 |"), "{text}");
        assert!(text.ends_with("| growth | | flat (0.00) | – | linear (1.00) | linear (1.00) |\n"), "{text}");
    }
}
