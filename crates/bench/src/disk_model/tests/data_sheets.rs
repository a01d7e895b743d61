//! Tests of the model against data sheets and against measured seeks.

use super::super::geometry::SECTOR;
use super::super::mechanics::SpinningDisk;
use super::super::seek::SeekCurve;
use super::{KNOWN, barracuda, cylinder, drive, sectors};
use crate::disk_model::drives::Drive;
use hindcast_engine::world::split_mix;

/// Number of random reads whose mean is compared with a data sheet.
const READS: u32 = 100_000;

/// The seeks of the Barracuda ST32171W that were measured for DiskSim: cylinders and milliseconds.
const MEASURED: [(u32, f64); 87] = [
    (1, 1.943),
    (2, 1.956),
    (3, 1.933),
    (4, 2.175),
    (5, 2.176),
    (6, 2.334),
    (7, 2.344),
    (8, 2.326),
    (9, 2.328),
    (10, 2.351),
    (12, 2.358),
    (14, 2.549),
    (16, 2.534),
    (18, 2.549),
    (20, 2.548),
    (25, 2.556),
    (30, 3.549),
    (35, 3.721),
    (40, 3.743),
    (45, 3.754),
    (50, 3.768),
    (60, 3.939),
    (70, 4.141),
    (80, 4.138),
    (90, 4.140),
    (100, 4.158),
    (125, 4.514),
    (150, 4.729),
    (175, 4.929),
    (200, 5.307),
    (225, 5.342),
    (250, 5.485),
    (275, 5.533),
    (300, 5.523),
    (325, 5.524),
    (350, 5.526),
    (375, 5.717),
    (400, 5.711),
    (425, 5.901),
    (450, 5.758),
    (475, 5.943),
    (500, 6.137),
    (600, 6.333),
    (700, 6.730),
    (800, 7.322),
    (900, 7.915),
    (1000, 8.114),
    (1100, 8.507),
    (1200, 8.702),
    (1300, 8.727),
    (1400, 8.858),
    (1500, 9.117),
    (1600, 9.461),
    (1700, 9.479),
    (1800, 9.888),
    (1900, 10.086),
    (2000, 10.092),
    (2100, 10.487),
    (2200, 10.851),
    (2300, 10.884),
    (2400, 11.270),
    (2500, 11.284),
    (2600, 11.658),
    (2700, 11.873),
    (2800, 12.053),
    (2900, 12.244),
    (3000, 12.471),
    (3100, 12.640),
    (3200, 12.845),
    (3300, 13.025),
    (3400, 13.268),
    (3500, 13.447),
    (3600, 13.625),
    (3700, 14.006),
    (3800, 14.215),
    (3900, 14.215),
    (4000, 14.615),
    (4100, 14.794),
    (4200, 15.002),
    (4300, 15.231),
    (4400, 15.405),
    (4500, 15.623),
    (4600, 15.831),
    (4700, 16.031),
    (4800, 16.193),
    (4900, 16.419),
    (4986, 16.679),
];

fn is_within(share: f64, value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() <= share
}

/// Returns the mean seek and the mean rotation of reads of one sector at places that `place` makes
/// from random bits.
fn means(drive: &Drive, place: impl Fn(u64) -> u64) -> (f64, f64) {
    let (mut disk, mut state) = (SpinningDisk::new(drive), 1);
    let (mut seek, mut rotation) = (0.0, 0.0);
    for _ in 0..READS {
        let price = disk.read(0.0, sectors(place(split_mix(&mut state)), 1));
        seek += price.seek;
        rotation += price.rotation;
    }
    (seek / f64::from(READS), rotation / f64::from(READS))
}

/// The design of the model names the two terms for both drives.
#[test]
fn the_law_has_the_figures_of_the_design() {
    let close = |a: f64, b: f64| (a - b).abs() < 0.006;
    for (name, [expected_root, expected_line]) in [("wd400bb", [2.83, 16.17]), ("6y080m0", [10.17, 8.93])] {
        let SeekCurve::Law { root, line, .. } = drive(name).seek else { panic!("{name} has a table") };
        assert!(close(root, expected_root) && close(line, expected_line), "{name}: {root} {line}");
    }
}

/// The data sheets average over pairs of cylinders. Random sectors are nearer to one another,
/// because the outer cylinders have more sectors.
#[test]
fn the_mean_of_random_seeks_is_that_of_the_data_sheet() {
    for (name, average) in KNOWN.iter().zip([8.9, 9.3]) {
        let drive = drive(name);
        let geometry = &drive.geometry;
        let (seek, rotation) = means(&drive, |bits| cylinder(geometry, bits % geometry.cylinders()));
        assert!(is_within(0.02, seek, average), "{name}: {seek} ms");
        let (seek, rotation_of_sectors) = means(&drive, |bits| bits % geometry.sectors());
        assert!(seek < average && is_within(0.06, seek, average), "{name}: {seek} ms");
        for rotation in [rotation, rotation_of_sectors] {
            assert!(is_within(0.02, rotation, geometry.revolution() / 2.0), "{name}: {rotation} ms");
        }
    }
}

#[test]
fn the_longest_and_the_shortest_seek_are_those_of_the_data_sheet() {
    for (name, track, full) in [("wd400bb", 2.0, 21.0), ("6y080m0", 0.9, 20.0)] {
        let drive = drive(name);
        let longest = drive.geometry.cylinders() - 1;
        assert!(is_within(1e-9, drive.seek.milliseconds(longest), full), "{name}");
        assert!(is_within(0.05, drive.seek.milliseconds(1), track), "{name}");
        assert_eq!(drive.seek.milliseconds(0), 0.0);
    }
}

/// Returns the bytes per second of a reader that asks for 128 KiB after 128 KiB of `tracks` tracks.
fn rate(drive: &Drive, from: u64, count: u64) -> f64 {
    const REQUEST: u64 = 256;
    let mut disk = SpinningDisk::new(drive);
    // The head comes to the place.
    disk.read(0.0, sectors(from, REQUEST));
    let start = disk.free();
    for n in 1..count / REQUEST {
        disk.read(0.0, sectors(from + n * REQUEST, REQUEST));
    }
    ((count / REQUEST - 1) * REQUEST * SECTOR) as f64 / ((disk.free() - start) / 1e3)
}

/// A sequential reader gets a cylinder in the time of its turns and switches. The rate on the
/// medium is four fifths of the 400 and 244 Mbit/s of one data sheet. Of the other drive it is what
/// 1102 and 610 sectors of a track make.
#[test]
fn the_sequential_rate_is_that_of_the_zones() {
    let cases = [
        ("wd400bb", [40.0e6, 24.4e6], [651, 397], 4, [1.0, 2.0]),
        ("6y080m0", [67.7e6, 37.5e6], [1102, 610], 2, [0.9, 0.9]),
    ];
    for (name, media, per_track, heads, switches) in cases {
        let drive = drive(name);
        let turn = drive.geometry.revolution();
        let begin_of_last = cylinder(&drive.geometry, drive.geometry.cylinders() * 15 / 16 + 1);
        for (n, from) in [0, begin_of_last].into_iter().enumerate() {
            let of_cylinder = f64::from(heads * per_track[n] * SECTOR as u32);
            let turns = f64::from(heads) * turn;
            let of_turns = of_cylinder / turns * 1e3;
            assert!(is_within(0.01, of_turns, media[n]), "{name}: {of_turns}");
            let with_switches = turns + f64::from(heads - 1) * switches[0] + switches[1];
            let expected = of_cylinder / with_switches * 1e3;
            let measured = rate(&drive, from, 128 << 11);
            assert!(is_within(0.02, measured, expected), "{name}: {measured} instead of {expected}");
        }
    }
}

/// 13 of the measured points are in the description. The lines between them lead past all others.
#[test]
fn a_table_is_within_five_per_cent_of_a_published_drive() {
    let drive = barracuda();
    for (distance, time) in MEASURED {
        let seek = drive.seek.milliseconds(distance.into());
        assert!(is_within(0.05, seek, time), "{distance} cylinders: {seek} instead of {time} ms");
    }
}

/// The law has the shortest, the mean and the longest of the measured seeks. It is within 15 % of
/// all seeks longer than 4 % of the stroke. Between 30 and 200 cylinders it is up to 21 % below the
/// drive. No law of these three terms is within 15 % of all 87 points: the largest deviation of the
/// one that is nearest to them is 15.005 %.
#[test]
fn a_law_is_near_a_published_drive() {
    let all = SeekCurve::table(&MEASURED).unwrap();
    let stroke = 4986u64;
    let weights = (1..=stroke).map(|distance| (stroke + 1 - distance) as f64);
    let weighted: f64 = weights.clone().zip(1..).map(|(weight, at)| weight * all.milliseconds(at)).sum();
    let average = weighted / weights.sum::<f64>();
    assert!((9.1..9.3).contains(&average), "{average}");
    let law = SeekCurve::law(1.943, average, 16.679, stroke + 1).unwrap();
    let mut sum = 0.0;
    for (distance, time) in MEASURED {
        let seek = law.milliseconds(distance.into());
        let allowed = if distance > 200 { 0.15 } else { 0.211 };
        assert!(is_within(allowed, seek, time), "{distance} cylinders: {seek} instead of {time} ms");
        sum += (seek / time - 1.0).abs();
    }
    assert!(sum / 87.0 < 0.06, "the mean deviation is {}", sum / 87.0);
}
