//! Tests of prices of traces: which accesses reach a disk, and the report of a trace file.

use super::super::drives::Drive;
use super::super::mechanics::SpinningDisk;
use super::super::price::{DiskPrice, PriceSum, Unpriced, price_disk};
use super::super::table::PricedTrace;
use super::super::trace::LoadedTrace;
use super::{drive, sectors};
use hindcast_engine::disk::{AccessOp, Cause, DiskAccess, TraceEncoder, TraceEnd, TracePart};
use hindcast_engine::testing::{KIB, MIB, Site, read, write};

/// A buffered access of a time in milliseconds.
fn access(at: u64, op: AccessOp, offset: u64, len: u32) -> DiskAccess {
    DiskAccess {
        at: at * 1_000_000,
        disk: 0,
        offset,
        len,
        micros: 7,
        op,
        cause: Cause::Apply,
        failed: false,
        direct: false,
        cached: false,
        purpose: None,
        depth: 1,
    }
}

fn price(drive: &Drive, accesses: &[DiskAccess]) -> DiskPrice {
    price_disk(drive, accesses.iter()).unwrap()
}

fn sum(priced: &DiskPrice, op: AccessOp) -> PriceSum {
    priced.sums.get(&(op, Cause::Apply)).copied().unwrap_or_default()
}

#[test]
fn only_some_accesses_reach_the_disk() {
    let drive = drive("wd400bb");
    let read = access(5, AccessOp::Read, 1 << 30, 4096);
    let found = price(
        &drive,
        &[
            DiskAccess { cached: true, ..read },
            DiskAccess { failed: true, ..read },
            DiskAccess { op: AccessOp::Punch, len: u32::MAX, offset: u64::MAX / 2, ..read },
            read,
        ],
    );
    assert_eq!(found.unpriced, Unpriced { cached: 1, punched: 1, failed: 1 });
    let alone = SpinningDisk::new(&drive).read(5.0, sectors(1 << 21, 8));
    let expected = PriceSum {
        accesses: 1,
        from_cache: 0,
        bytes: 4096,
        seek: alone.seek,
        rotation: alone.rotation,
        transfer: alone.transfer,
    };
    assert_eq!(sum(&found, AccessOp::Read), expected);
    assert_eq!(found.sums.len(), 1);
}

/// Buffered writes wait for the sync, and the read before it does not wait for them.
#[test]
fn writes_between_two_syncs_are_issued_together() {
    let drive = drive("wd400bb");
    let trace = [
        access(1, AccessOp::Write, 3 << 30, 4096),
        access(2, AccessOp::Read, 1 << 30, 4096),
        access(3, AccessOp::Write, 2 << 30, 4096),
        access(400, AccessOp::Sync, 0, 0),
        access(500, AccessOp::Sync, 0, 0),
        access(600, AccessOp::Write, 2 << 30, 4096),
    ];
    let found = price(&drive, &trace);
    let mut disk = SpinningDisk::new(&drive);
    let read = disk.read(2.0, sectors(2 << 20, 8));
    let together = disk.write_together(400.0, &[sectors(6 << 20, 8), sectors(4 << 20, 8)]);
    let last = disk.write_together(600.0, &[sectors(4 << 20, 8)]);
    assert_eq!(sum(&found, AccessOp::Read).total(), read.total());
    let written = sum(&found, AccessOp::Write);
    let expected: f64 = together.iter().chain(&last).map(|price| price.total()).sum();
    assert!((written.total() - expected).abs() < 1e-9 && written.accesses == 3, "{written:?}");
    assert_eq!(found.unsynced, 1);
    let syncs = sum(&found, AccessOp::Sync);
    assert_eq!((syncs.accesses, syncs.total()), (2, 0.0));
}

#[test]
fn a_direct_write_does_not_wait_for_a_sync() {
    let drive = drive("wd400bb");
    let direct = DiskAccess { direct: true, ..access(1, AccessOp::Write, 3 << 30, 4096) };
    let read = access(500, AccessOp::Read, 3 << 30, 4096);
    let found = price(&drive, &[direct, read]);
    let mut disk = SpinningDisk::new(&drive);
    let prices = [disk.write(1.0, sectors(6 << 20, 8)), disk.read(500.0, sectors(6 << 20, 8))];
    assert_eq!(sum(&found, AccessOp::Write).total(), prices[0].total());
    assert_eq!(sum(&found, AccessOp::Read).total(), prices[1].total());
    assert_eq!((prices[1].seek, found.unsynced), (0.0, 0));
}

#[test]
fn a_trace_beyond_the_end_of_the_drive_is_refused() {
    let drive = drive("wd400bb");
    let end = drive.geometry.sectors() * 512;
    let of = |offset, len| price_disk(&drive, [access(0, AccessOp::Read, offset, len)].iter());
    assert!(of(end - 512, 512).is_ok());
    for (offset, len) in [(end - 512, 513), (end, 0), (u64::MAX - 511, u32::MAX)] {
        let error = of(offset, len).expect_err("it ends behind the drive").to_string();
        assert!(error.contains("WD400BB has 40020664320 bytes"), "{error}");
    }
}

/// Returns the bytes of a trace of a pool: a client writes, the destager works, and the client
/// reads.
fn trace_file() -> Vec<u8> {
    let site = Site::new(64).having("v", 8 * MIB, 16 * KIB);
    let volume = site.open("v");
    let head = site.pool.begin_trace().unwrap();
    write(&volume, 0, 1, MIB);
    site.idle();
    read(&volume, 64 * KIB, 64 * KIB);
    let (mut file, mut encoder) = (head.encode(), TraceEncoder::default());
    encoder.disks(&site.pool.traced_disks(), &mut file);
    encoder.accesses(&site.pool.end_trace(), u64::MAX, &mut file);
    encoder.end(TraceEnd::Stopped, 2_000_000_000, &mut file);
    file
}

#[test]
fn a_trace_file_becomes_a_report() {
    let drive = drive("6y080m0");
    let file = trace_file();
    let trace = LoadedTrace::read(&file[..], &[]).unwrap();
    let priced = PricedTrace::new(&trace, &drive).unwrap();
    let (table, json) = (priced.markdown(), priced.json());
    assert!(table.contains("2.0 s; each disk as a 6Y080M0 of 82.0 GB"), "{table}");
    let rows: Vec<&str> = table.lines().filter(|line| line.contains(" ms |")).collect();
    assert!(rows.len() > 2 && rows.iter().any(|row| row.contains("| read | read |")), "{table}");
    assert!(rows.last().is_some_and(|row| row.starts_with("| **sum** |")), "{table}");
    let disks = json["disks"].as_array().unwrap();
    let total = |value: &serde_json::Value| value["total_ms"].as_f64().unwrap();
    let of_rows: f64 =
        disks.iter().flat_map(|disk| disk["rows"].as_array().unwrap()).map(|row| total(&row["price"])).sum();
    assert!(of_rows > 10.0 && (of_rows - total(&json["sum"])).abs() < 1e-6, "{json}");
    assert_eq!(json["is_whole"], true);
    // All reads were short enough for the page cache.
    let mut cached = LoadedTrace::read(&file[..], &[]).unwrap();
    cached.take_for_cached(u32::MAX);
    let without = PricedTrace::new(&cached, &drive).unwrap().markdown();
    assert!(!without.contains("| read | read |") && !without.contains("Not priced: 0 reads"), "{without}");
    // The same file gives the same prices.
    let again = LoadedTrace::read(&file[..], &[]).unwrap();
    assert_eq!(PricedTrace::new(&again, &drive).unwrap().markdown(), table);
}

#[test]
fn physical_volumes_are_chosen_by_name() {
    let file = trace_file();
    let choose = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        LoadedTrace::read(&file[..], &names)
    };
    let all = choose(&[]).unwrap();
    let (number, disk) = all.disks.first_key_value().unwrap();
    for name in [disk.path.clone(), disk.pv_path.clone(), number.to_string()] {
        assert_eq!(choose(&[&name]).unwrap().disks.len(), 1, "{name}");
    }
    let error = choose(&["nothing"]).expect_err("there is no such disk").to_string();
    assert!(error.contains("nothing") && error.contains(&disk.path), "{error}");
}

#[test]
fn a_file_that_is_cut_off_is_priced_and_a_foreign_one_is_refused() {
    let drive = drive("wd400bb");
    let file = trace_file();
    let trace = LoadedTrace::read(&file[..file.len() - 1], &[]).unwrap();
    let table = PricedTrace::new(&trace, &drive).unwrap().markdown();
    assert!(table.contains("The file was cut off."), "{table}");
    let mut bytes = file[..64].to_vec();
    TraceEncoder::default().accesses(&TracePart::default(), u64::MAX, &mut bytes);
    let trace = LoadedTrace::read(&bytes[..], &[]).unwrap();
    assert!(PricedTrace::new(&trace, &drive).unwrap().markdown().contains("**sum**"));
    let error = LoadedTrace::read(&b"anything"[..], &[]).expect_err("it is no trace").to_string();
    assert!(error.contains("no trace of Hindcast"), "{error}");
}
