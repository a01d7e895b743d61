//! Tests of descriptions of drives: what they say, and which ones are refused.

use super::super::drives::Drive;
use super::super::seek::SeekCurve;
use super::{barracuda, drive};

const WD: &str = include_str!("../drives/wd400bb.toml");
const BARRACUDA: &str = include_str!("../drives/st32171w.toml");

#[test]
fn the_known_drives_have_their_capacity_and_their_cylinders() {
    let of = |drive: Drive| (drive.geometry.sectors(), drive.geometry.cylinders());
    assert_eq!(of(drive("wd400bb")), (78_165_360, 16 * 2331));
    assert_eq!(of(drive("6Y080M0")), (160_086_528, 16 * 5845));
    assert_eq!(of(barracuda()), (4_110_000, 5172));
}

/// Returns the error of a description in which the first `old` is replaced.
fn refused(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    let error = Drive::parse(&text.replacen(old, new, 1)).expect_err(new);
    format!("{error:#}")
}

#[test]
fn a_description_without_sense_is_refused() {
    let cases = [
        ("rpm = 7200", "rpm = 0", "rpm"),
        ("rpm = 7200", "rpm = nan", "rpm"),
        ("rpm = 7200", "rpm = 7200\ncolour = 1", "colour"),
        ("heads = 4", "heads = 0", "heads"),
        ("heads = 4", "heads = 18446744073709551615", "heads"),
        ("heads = 4", "heads = 1000", "heads"),
        ("sectors = 78_165_360", "sectors = 0", "cylinders"),
        ("zones = 16", "zones = 0", "zones"),
        ("zones = 16", "zones = 9000000000", "zones"),
        ("[651, 397]", "[0, 0]", "sectors in a track"),
        ("[651, 397]", "[4000000000, 397]", "sectors"),
        ("head_switch_ms = 1.0", "head_switch_ms = -1.0", "head_switch_ms"),
        ("command_ms = 0.3", "command_ms = inf", "command_ms"),
        ("write_settle_ms = 2.0", "write_settle_ms = nan", "write_settle_ms"),
        ("interface_mb_per_s = 100", "interface_mb_per_s = 0", "interface_mb_per_s"),
        ("average_ms = 8.9", "", "either"),
        ("average_ms = 8.9", "average_ms = 1.0", "ascending"),
        ("average_ms = 8.9", "average_ms = 3.0", "give a table"),
        ("average_ms = 8.9", "average_ms = 20.0", "give a table"),
        ("full_ms = 21.0", "full_ms = inf", "full_ms"),
        ("segments = 16", "segments = 1000000000", "segments"),
        ("segment_kib = 128", "segment_kib = 1000000000000000000", "segments"),
        ("name =", "nam", "TOML"),
    ];
    for (old, new, expected) in cases {
        let error = refused(WD, old, new);
        assert!(error.contains(expected), "{new}: {error}");
    }
    let cases = [
        ("sectors = 4_110_000", "sectors = 5_000_000", "fewer than"),
        ("[1129, 186]", "[0, 186]", "cylinders"),
        ("[1129, 186]", "[1129, 0]", "sectors in a track"),
        ("zone = [", "zones = 16\nzone = [", "either"),
        ("[1, 1.943]", "[0, 1.943]", "positive"),
        ("[1, 1.943]", "[1, -1.943]", "positive"),
        ("[1, 1.943]", "[4, 1.943]", "ascending"),
        ("[1, 1.943]", "[1, 30.0]", "longest"),
        ("table = [", "track_ms = 1.0\ntable = [", "either"),
    ];
    for (old, new, expected) in cases {
        let error = refused(BARRACUDA, old, new);
        assert!(error.contains(expected), "{new}: {error}");
    }
}

#[test]
fn an_unknown_drive_is_refused_with_the_known_ones() {
    let error = format!("{:#}", Drive::find("no/such/drive.toml").expect_err("there is no such file"));
    assert!(error.contains("wd400bb, 6y080m0") && error.contains("no/such/drive.toml"), "{error}");
}

#[test]
fn a_table_is_continued_beyond_its_ends() {
    let curve = SeekCurve::table(&[(10, 2.0), (20, 3.0), (110, 12.0)]).unwrap();
    for (distance, time) in
        [(0, 0.0), (1, 2.0), (10, 2.0), (15, 2.5), (20, 3.0), (65, 7.5), (110, 12.0), (120, 13.0)]
    {
        assert!((curve.milliseconds(distance) - time).abs() < 1e-9, "{distance}");
    }
    assert!(SeekCurve::table(&[(1, 2.0)]).is_err());
}
