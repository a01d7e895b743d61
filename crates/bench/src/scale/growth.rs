//! How a cost grows with the number of volumes. The growth is the slope of the logarithm of the
//! cost against the logarithm of the number. Ranges of the slope have names.

/// The name of the growth of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Flat,
    LessThanLinear,
    Linear,
    MoreThanLinear,
}

impl Growth {
    /// Returns the growth for a slope. A slope of 1 is linear, and 2 is quadratic. A cost that
    /// falls is flat.
    pub(super) fn of(slope: f64) -> Growth {
        match slope {
            s if s < 0.15 => Growth::Flat,
            s if s < 0.8 => Growth::LessThanLinear,
            s if s <= 1.2 => Growth::Linear,
            _ => Growth::MoreThanLinear,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Growth::Flat => "flat",
            Growth::LessThanLinear => "less than linear",
            Growth::Linear => "linear",
            Growth::MoreThanLinear => "**more than linear**",
        }
    }
}

/// Returns the slope between two points (number, cost) on logarithmic axes. Returns `None` if a
/// value is not positive, as a cost below the noise is, or if both numbers are equal.
pub(super) fn slope(from: (f64, f64), to: (f64, f64)) -> Option<f64> {
    let positive = [from.0, from.1, to.0, to.1].iter().all(|v| v.is_finite() && *v > 0.0);
    (positive && from.0 != to.0).then(|| (to.1 / from.1).ln() / (to.0 / from.0).ln())
}

/// Returns the slope between the last two points. The points are in ascending order of their
/// numbers.
pub(super) fn last_slope(points: &[(f64, f64)]) -> Option<f64> {
    match points {
        [.., from, to] => slope(*from, *to),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_have_names() {
        let of = |power: f64| slope((1000.0, 3.0), (10_000.0, 3.0 * 10f64.powf(power))).map(Growth::of);
        for (power, growth) in [
            (-0.5, Growth::Flat),
            (0.0, Growth::Flat),
            (0.14, Growth::Flat),
            (0.16, Growth::LessThanLinear),
            (0.79, Growth::LessThanLinear),
            (0.81, Growth::Linear),
            (1.19, Growth::Linear),
            (1.21, Growth::MoreThanLinear),
            (2.0, Growth::MoreThanLinear),
        ] {
            assert_eq!(of(power), Some(growth), "{power}");
        }
    }

    #[test]
    fn nothing_has_no_growth() {
        assert_eq!(slope((1.0, 0.0), (10.0, 5.0)), None, "what is below the noise");
        assert_eq!(slope((1.0, -0.1), (10.0, 5.0)), None);
        assert_eq!(slope((10.0, 1.0), (10.0, 5.0)), None, "the same number");
        assert_eq!(slope((1.0, f64::NAN), (10.0, 5.0)), None);
        assert_eq!(last_slope(&[(10.0, 1.0)]), None);
    }

    #[test]
    fn the_last_two_count() {
        let points = [(1.0, 1.0), (10.0, 1.0), (100.0, 10.0)];
        assert_eq!(last_slope(&points), Some(1.0));
    }
}
