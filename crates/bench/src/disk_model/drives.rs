//! Descriptions of drives, in TOML: two that the program has, and files of the operator.
//!
//! `drives/wd400bb.toml` and `drives/st32171w.toml` show all keys. Zones are either
//! `sectors_per_track` and `zones`, or `zone`, a list of `[cylinders, sectors of a track]`. Seek
//! times are either three figures of a data sheet, or a `table` of `[cylinders, milliseconds]`.

use super::geometry::{Geometry, SECTOR};
use super::seek::SeekCurve;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::Path;

/// Names and descriptions of the drives that the program has.
const KNOWN: [(&str, &str); 2] =
    [("wd400bb", include_str!("drives/wd400bb.toml")), ("6y080m0", include_str!("drives/6y080m0.toml"))];

/// Most bytes of a description. A longer file is something else.
const LONGEST: u64 = 1 << 20;
/// Most zones of a drive.
const MOST_ZONES: u64 = 1000;
/// Most segments of a cache, and most KiB of a segment.
const MOST_SEGMENTS: usize = 4096;
const LONGEST_SEGMENT: u64 = 64 << 10;
/// Longest time of a drive for anything, in milliseconds.
const LONGEST_TIME: f64 = 10_000.0;

/// What the model knows of a drive. Times are in milliseconds, lengths in sectors.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) name: String,
    pub(super) geometry: Geometry,
    pub(super) seek: SeekCurve,
    /// Time that a write waits after the arm has moved, in addition to the seek.
    pub(super) write_settle: f64,
    /// Time from the arrival of a command until the arm moves or the cache answers.
    pub(super) command: f64,
    /// Time of a sector on the interface.
    pub(super) sector_on_interface: f64,
    pub(super) segments: usize,
    pub(super) segment: u64,
    pub(super) read_ahead: u64,
}

/// A description as it is in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DriveFile {
    name: String,
    rpm: f64,
    heads: u64,
    sectors: Option<u64>,
    zones: Option<u64>,
    sectors_per_track: Option<[u32; 2]>,
    zone: Option<Vec<(u32, u32)>>,
    head_switch_ms: f64,
    write_settle_ms: f64,
    command_ms: f64,
    interface_mb_per_s: f64,
    seek: SeekTimes,
    cache: CacheSizes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeekTimes {
    track_ms: Option<f64>,
    average_ms: Option<f64>,
    full_ms: Option<f64>,
    table: Option<Vec<(u32, f64)>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheSizes {
    segments: usize,
    segment_kib: u64,
    read_ahead_kib: u64,
}

impl Drive {
    /// Returns the drive with this name, or the drive that the file with this path describes.
    pub(super) fn find(name: &str) -> Result<Drive> {
        if let Some((_, text)) = KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Drive::parse(text).with_context(|| format!("the description of {name}"));
        }
        let path = Path::new(name);
        let known = KNOWN.map(|(known, _)| known).join(", ");
        let failed = || format!("read the description of a drive, {name} (known drives: {known})");
        let size = std::fs::metadata(path).with_context(failed)?.len();
        ensure!(size <= LONGEST, "{name} has {size} bytes, so it does not describe a drive");
        let text = std::fs::read_to_string(path).with_context(failed)?;
        Drive::parse(&text).with_context(|| format!("the description of a drive in {name}"))
    }

    /// Makes a drive from its description.
    pub(super) fn parse(text: &str) -> Result<Drive> {
        let file: DriveFile = toml::from_str(text).context("parse TOML")?;
        let times = [
            ("head_switch_ms", file.head_switch_ms),
            ("write_settle_ms", file.write_settle_ms),
            ("command_ms", file.command_ms),
        ];
        for (key, time) in times {
            ensure!(
                (0.0..=LONGEST_TIME).contains(&time),
                "{key} = {time} is not between 0 and {LONGEST_TIME}"
            );
        }
        let rate = file.interface_mb_per_s;
        ensure!(rate.is_finite() && rate > 0.0, "interface_mb_per_s = {rate} is not positive");
        let cache = &file.cache;
        ensure!(
            cache.segments <= MOST_SEGMENTS && cache.segment_kib <= LONGEST_SEGMENT,
            "cache: at most {MOST_SEGMENTS} segments of {LONGEST_SEGMENT} KiB"
        );
        let geometry = Geometry::new(file.rpm, file.heads, &file.all_zones()?, file.sectors)?;
        let seek = file.seek.curve(geometry.cylinders())?;
        let track_switch = seek.milliseconds(1).max(file.head_switch_ms);
        let sectors = |kib: u64| kib * 1024 / SECTOR;
        Ok(Drive {
            geometry: geometry.with_switches(file.head_switch_ms, track_switch),
            seek,
            write_settle: file.write_settle_ms,
            command: file.command_ms,
            sector_on_interface: SECTOR as f64 / (rate * 1e6) * 1e3,
            segments: cache.segments,
            segment: sectors(cache.segment_kib),
            read_ahead: sectors(cache.read_ahead_kib.min(cache.segment_kib)),
            name: file.name,
        })
    }
}

impl DriveFile {
    /// Returns the zones (cylinders, sectors of a track), the outermost one first.
    fn all_zones(&self) -> Result<Vec<(u64, u64)>> {
        let zones = match (&self.zone, self.sectors_per_track, self.zones, self.sectors) {
            (Some(list), None, None, _) => {
                list.iter().map(|(cylinders, per_track)| ((*cylinders).into(), (*per_track).into())).collect()
            }
            (None, Some([outer, inner]), Some(count), Some(sectors)) => {
                equal_zones(count, (outer, inner), self.heads, sectors)?
            }
            _ => bail!("give either `zone`, or `sectors`, `zones` and `sectors_per_track`"),
        };
        ensure!(zones.len() as u64 <= MOST_ZONES, "the drive has more than {MOST_ZONES} zones");
        Ok(zones)
    }
}

/// Returns `count` zones with the same number of cylinders each. The sectors of a track fall evenly
/// from the outermost to the innermost zone. There are as many cylinders as `sectors` need.
fn equal_zones(count: u64, tracks: (u32, u32), heads: u64, sectors: u64) -> Result<Vec<(u64, u64)>> {
    ensure!((1..=MOST_ZONES).contains(&count), "zones = {count} is not between 1 and {MOST_ZONES}");
    let (outer, inner) = (f64::from(tracks.0), f64::from(tracks.1));
    let per_track = |zone: u64| {
        let part = zone as f64 / (count - 1).max(1) as f64;
        (outer + (inner - outer) * part).round() as u64
    };
    // Figures that make no drive are left to the check of the geometry.
    let each = (0..count).map(per_track).sum::<u64>().saturating_mul(heads).max(1);
    Ok((0..count).map(|zone| (sectors.div_ceil(each), per_track(zone))).collect())
}

impl SeekTimes {
    fn curve(&self, cylinders: u64) -> Result<SeekCurve> {
        match (self.track_ms, self.average_ms, self.full_ms, &self.table) {
            (Some(track), Some(average), Some(full), None) => {
                ensure!(full <= LONGEST_TIME, "full_ms = {full} is more than {LONGEST_TIME}");
                SeekCurve::law(track, average, full, cylinders)
            }
            (None, None, None, Some(table)) => SeekCurve::table(table),
            _ => bail!("[seek]: give either `track_ms`, `average_ms` and `full_ms`, or `table`"),
        }
    }
}
