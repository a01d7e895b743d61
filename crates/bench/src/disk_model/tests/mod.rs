//! Tests of the disk model.

mod accesses;
mod data_sheets;
mod descriptions;
mod files;

use super::drives::Drive;
use super::geometry::Geometry;
use super::mechanics::SectorRange;

/// Names of the drives that the program has.
const KNOWN: [&str; 2] = ["wd400bb", "6y080m0"];

fn drive(name: &str) -> Drive {
    Drive::find(name).unwrap()
}

/// The drive whose measured seek times DiskSim has.
fn barracuda() -> Drive {
    Drive::parse(include_str!("../drives/st32171w.toml")).unwrap()
}

fn sectors(from: u64, count: u64) -> SectorRange {
    SectorRange { from, to: from + count }
}

/// Returns the first sector of a cylinder, or of the last cylinder that has sectors.
fn cylinder(geometry: &Geometry, number: u64) -> u64 {
    let (mut low, mut high) = (0, geometry.sectors() - 1);
    while low < high {
        let middle = low.midpoint(high);
        match geometry.locate(middle).cylinder < number {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-4
}
