//! Tests of the model against what its equations state about each other.

use super::*;

const CONSTANTS: Constants =
    Constants { s_blk: 16384.0, s_log: 700.0, t_dec: 4e-6, t_xor: 6e-7, io_rate: 150e6 };
const LOAD: Load = Load { w_total: 3e6, n: 9000.0 };
const WEIGHTS: Weights = Weights { beta: 0.3, gamma: 1e-8 };

fn volume() -> VolumeModel {
    VolumeModel::new(CONSTANTS, LOAD, WEIGHTS).unwrap()
}

/// Compares equation 4 with the mean that it approximates: moments are spread evenly, and each is
/// reached from its nearer end.
#[test]
fn expected_steps_are_a_quarter_of_the_distance() {
    for d in 1u32..500 {
        let exact = (0..=d).map(|k| f64::from(k.min(d - k))).sum::<f64>() / f64::from(d + 1);
        let off = expected_steps(f64::from(d)) - exact;
        assert!((0.0..=0.5).contains(&off), "d = {d}: {exact} and {off} more");
    }
}

/// Equations 7 and 8: the best length is better than whole numbers near it and far from it.
#[test]
fn the_best_length_is_the_minimum() {
    for (s_log, t_dec) in [(50.0, 0.0), (700.0, 4e-6), (4000.0, 1e-3), (16384.0, 0.0)] {
        let model = BlockModel::new(Constants { s_log, t_dec, ..CONSTANTS }, 1.0).unwrap();
        let best = model.best_length();
        let least = (1u32..5000).min_by(|a, b| {
            let cost = |d: &u32| model.cost(f64::from(*d));
            cost(a).total_cmp(&cost(b))
        });
        let least = u64::from(least.unwrap());
        // F is flat around its minimum, and not symmetric: the closest whole number to d0 may be
        // its neighbour's equal.
        assert!(best.abs_diff(least) <= 1, "{best} and {least}");
        assert!(model.cost(best as f64) <= model.cost(least as f64) * 1.0001);
    }
}

#[test]
fn how_often_a_block_is_written_moves_no_optimum() {
    let of = |w_avg| BlockModel::new(CONSTANTS, w_avg).unwrap();
    assert!((of(1.0).best() / of(1234.5).best() - 1.0).abs() < 1e-12);
    assert!((of(10.0).space(5.0) / of(1.0).space(5.0) - 10.0).abs() < 1e-12);
}

/// Equation 3 grows with the distance of the moment. Equation 5 does not depend on it.
#[test]
fn native_trap_takes_longer_the_farther_the_moment_is() {
    let hour = native_recovery(&CONSTANTS, 0.01, 3600.0);
    assert!((native_recovery(&CONSTANTS, 0.01, 8.0 * 3600.0) / hour - 8.0).abs() < 1e-12);
    assert!((hour - 36.0 * CONSTANTS.step()).abs() < 1e-15);
}

/// Equations 11 and 13 are the derivatives of equation 10. They are zero, or not, where they should
/// be.
#[test]
fn derivatives_are_those_of_the_cost() {
    let model = volume();
    for m in [10.0, 1e3, 1e5, 1e7] {
        let h = m * 1e-4;
        let slope = (model.cost(m + h) - model.cost(m - h)) / (2.0 * h);
        let scale = model.slope(m).abs().max(model.curvature(m) * m);
        assert!((slope - model.slope(m)).abs() <= scale * 1e-3, "{m}: {slope} {}", model.slope(m));
        let bend = (model.slope(m + h) - model.slope(m - h)) / (2.0 * h);
        assert!((bend / model.curvature(m) - 1.0).abs() < 1e-3, "{m}: {bend} {}", model.curvature(m));
    }
    let best = model.best();
    assert!(model.slope(best).abs() < model.curvature(best) * best * 1e-9);
    assert!(model.slope(best / 2.0) < 0.0 && model.slope(best * 2.0) > 0.0 && model.curvature(best) > 0.0);
}

#[test]
fn the_interval_has_its_bounds() {
    let model = volume();
    let best = model.best().round() as u64;
    assert_eq!(model.interval(u64::MAX), best);
    assert_eq!(model.interval(best - 1), best - 1);
    assert_eq!(model.interval(0), 1, "no memory at all: an anchor after each write");
    let free_time = VolumeModel::new(CONSTANTS, LOAD, Weights { beta: 0.0, gamma: 1.0 }).unwrap();
    assert_eq!(free_time.interval(77), 77, "only the bound is left");
    // Time dear against space means anchors more often.
    let dear = VolumeModel::new(CONSTANTS, LOAD, Weights { beta: 3000.0, gamma: 1e-8 }).unwrap();
    assert!(dear.best() < model.best());
}

#[test]
fn nonsense_is_refused() {
    let block = |change: fn(&mut Constants)| {
        let mut constants = CONSTANTS;
        change(&mut constants);
        BlockModel::new(constants, 1.0)
    };
    assert!(block(|_| ()).is_ok());
    for refused in [
        block(|c| c.s_blk = 0.0),
        block(|c| c.s_log = 0.0),
        block(|c| c.t_dec = -1e-9),
        block(|c| c.t_xor = f64::NAN),
        block(|c| c.io_rate = f64::INFINITY),
        BlockModel::new(CONSTANTS, 0.0),
    ] {
        assert_eq!(refused.unwrap_err().kind(), crate::ErrorKind::Invalid);
    }
    for (load, weights) in [
        (Load { w_total: 0.0, ..LOAD }, WEIGHTS),
        (Load { n: f64::NAN, ..LOAD }, WEIGHTS),
        (LOAD, Weights { beta: 0.0, gamma: 0.0 }),
        (LOAD, Weights { beta: -1.0, gamma: 2.0 }),
    ] {
        assert!(VolumeModel::new(CONSTANTS, load, weights).is_err());
    }
}
