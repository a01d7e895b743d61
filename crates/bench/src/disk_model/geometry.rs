//! The places of sectors: cylinders, surfaces and angles.
//!
//! Sectors are numbered from the outermost cylinder inwards. A cylinder has one track on each
//! surface, and its tracks follow one another by surface. A zone is a group of neighbouring
//! cylinders whose tracks have the same number of sectors.
//!
//! The first sector of a track lies behind the end of the track before it, by the angle that the
//! disk turns while the drive switches tracks (the skew). So a sequential transfer waits for no
//! turn between two tracks.

use anyhow::{Context, Result, ensure};

/// Bytes of a sector.
pub(super) const SECTOR: u64 = 512;
/// Most heads of a drive.
const MOST_HEADS: u64 = 255;
/// Most sectors of a track. The bound keeps capacities within 64 bits.
const MOST_PER_TRACK: u64 = 1 << 20;
/// Angle as a part of a turn below which two angles are equal. Rounding is far below it, and it is
/// far below a sector.
const SAME_ANGLE: f64 = 1e-6;

/// Cylinders whose tracks have the same number of sectors.
#[derive(Debug, Clone, PartialEq)]
struct Zone {
    first_sector: u64,
    first_cylinder: u64,
    /// Sectors of a track.
    per_track: u64,
}

/// The form of a drive. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Geometry {
    heads: u64,
    cylinders: u64,
    /// Sectors that a host can address.
    sectors: u64,
    /// The outermost zone comes first. There is at least one.
    zones: Vec<Zone>,
    /// Time of a turn.
    revolution: f64,
    /// Time of a switch to the next surface of a cylinder, and to the next cylinder.
    head_switch: f64,
    track_switch: f64,
}

/// Where a sector is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SectorPlace {
    pub(super) cylinder: u64,
    pub(super) surface: u64,
    /// Number of the sector in its track.
    sector: u64,
    /// Sectors of its track.
    per_track: u64,
    /// Angle at which the sector begins, as a part of a turn: 0 to 1.
    angle: f64,
}

impl Geometry {
    /// Makes a geometry from zones (cylinders, sectors of a track), the outermost one first.
    /// `sectors` is the capacity. `None`: all sectors of the zones. The switches take no time until
    /// [`Geometry::with_switches`].
    pub(super) fn new(rpm: f64, heads: u64, zones: &[(u64, u64)], sectors: Option<u64>) -> Result<Geometry> {
        ensure!(rpm.is_finite() && (1.0..=1e6).contains(&rpm), "rpm = {rpm} is not between 1 and 1,000,000");
        ensure!((1..=MOST_HEADS).contains(&heads), "heads = {heads} is not between 1 and {MOST_HEADS}");
        let mut geometry = Geometry {
            heads,
            cylinders: 0,
            sectors: 0,
            zones: Vec::with_capacity(zones.len()),
            revolution: 60_000.0 / rpm,
            head_switch: 0.0,
            track_switch: 0.0,
        };
        let mut all = 0u64;
        for (cylinders, per_track) in zones {
            ensure!(*cylinders > 0, "a zone has no cylinders");
            ensure!(
                (1..=MOST_PER_TRACK).contains(per_track),
                "a zone has {per_track} sectors in a track, not between 1 and {MOST_PER_TRACK}"
            );
            let first_cylinder = geometry.cylinders;
            geometry.zones.push(Zone { first_sector: all, first_cylinder, per_track: *per_track });
            geometry.cylinders = first_cylinder.checked_add(*cylinders).context("too many cylinders")?;
            let of_zone = cylinders.checked_mul(heads * per_track);
            all =
                of_zone.and_then(|more| all.checked_add(more)).context("the zones have too many sectors")?;
        }
        ensure!(geometry.cylinders > 1, "the zones have fewer than two cylinders");
        geometry.sectors = sectors.unwrap_or(all);
        ensure!(geometry.sectors > 0, "the drive has no sectors");
        ensure!(
            geometry.sectors <= all,
            "the zones have {all} sectors, fewer than sectors = {}",
            geometry.sectors
        );
        Ok(geometry)
    }

    /// Sets the times of switches to the next surface and to the next cylinder.
    pub(super) fn with_switches(self, head_switch: f64, track_switch: f64) -> Geometry {
        Geometry { head_switch, track_switch, ..self }
    }

    /// Returns the number of sectors that a host can address.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the number of cylinders.
    pub(super) fn cylinders(&self) -> u64 {
        self.cylinders
    }

    /// Returns the time of a turn.
    #[cfg(test)]
    pub(super) fn revolution(&self) -> f64 {
        self.revolution
    }

    /// Returns the time of a switch to another surface of the same cylinder.
    pub(super) fn head_switch(&self) -> f64 {
        self.head_switch
    }

    /// Finds a sector.
    pub(super) fn locate(&self, sector: u64) -> SectorPlace {
        let zone = self.zones.partition_point(|zone| zone.first_sector <= sector).saturating_sub(1);
        let zone = &self.zones[zone];
        let inside = sector.saturating_sub(zone.first_sector);
        let (track, sector) = (inside / zone.per_track, inside % zone.per_track);
        let (cylinder, surface) = (zone.first_cylinder + track / self.heads, track % self.heads);
        let of_cylinder = (self.heads - 1) as f64 * self.head_switch + self.track_switch;
        let skew = cylinder as f64 * of_cylinder + surface as f64 * self.head_switch;
        let angle = skew / self.revolution + sector as f64 / zone.per_track as f64;
        SectorPlace { cylinder, surface, sector, per_track: zone.per_track, angle: angle.fract() }
    }

    /// Returns how long the disk turns from time `at` until a place is under the head.
    pub(super) fn turn_to(&self, at: f64, place: &SectorPlace) -> f64 {
        self.turn_to_angle(at, place.angle)
    }

    /// Returns how long the disk turns from time `at` until the end of a place is under the head.
    pub(super) fn turn_to_end(&self, at: f64, place: &SectorPlace) -> f64 {
        self.turn_to_angle(at, place.angle + 1.0 / place.per_track as f64)
    }

    fn turn_to_angle(&self, at: f64, angle: f64) -> f64 {
        let part = (angle - at / self.revolution).rem_euclid(1.0);
        if part > 1.0 - SAME_ANGLE { 0.0 } else { part * self.revolution }
    }

    /// Returns the time of the switch that is between the sector before `place` and `place`.
    fn switch_before(&self, place: &SectorPlace) -> f64 {
        match (place.sector, place.surface) {
            (0, 0) => self.track_switch,
            (0, _) => self.head_switch,
            _ => 0.0,
        }
    }

    /// Returns how long the head takes from the beginning of the sector `from` to the end of the
    /// sector before `to`, with all switches.
    pub(super) fn passing(&self, from: u64, to: u64) -> f64 {
        let (mut next, mut time) = (from, 0.0);
        while next < to {
            let place = self.locate(next);
            if next > from {
                time += self.switch_before(&place);
            }
            let count = (place.per_track - place.sector).min(to - next);
            time += count as f64 * self.revolution / place.per_track as f64;
            next += count;
        }
        time
    }

    /// Returns how long the head takes from the end of the sector before `from` to the end of the
    /// sector before `to`. 0 if `to` is not behind `from`.
    pub(super) fn continuing(&self, from: u64, to: u64) -> f64 {
        if to <= from {
            return 0.0;
        }
        self.switch_before(&self.locate(from)) + self.passing(from, to)
    }

    /// Returns the sector that the head has come to, `time` after the end of the sector before
    /// `from`: all sectors before it have passed. The head stops at `limit`.
    pub(super) fn reached(&self, from: u64, time: f64, limit: u64) -> u64 {
        let (mut next, mut left) = (from, time);
        while next < limit {
            let place = self.locate(next);
            left -= self.switch_before(&place);
            let of_sector = self.revolution / place.per_track as f64;
            let passed = left / of_sector + SAME_ANGLE;
            let count = (place.per_track - place.sector).min(limit - next);
            if passed < count as f64 {
                return next + passed.max(0.0) as u64;
            }
            left -= count as f64 * of_sector;
            next += count;
        }
        next
    }
}
