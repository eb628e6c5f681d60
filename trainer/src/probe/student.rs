//! Quantiles of Student's t distribution for a whole number of degrees of
//! freedom, by the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4.
//!
//! A crate would be the usual choice; `statrs` brings eight packages into the
//! lock file for this one function. The validator has another method.

use std::f64::consts::FRAC_2_PI;

/// Halvings after which an interval of binary64 has no middle.
const MAX_HALVINGS: u32 = 2_200;

/// `t` with `P(T > t) = alpha` for `0 < alpha < 0.5` and `degrees` from 1 on;
/// not a number elsewhere. Relative error of the tail: about 2e-16 / alpha.
#[must_use]
pub(super) fn upper_quantile(alpha: f64, degrees: u32) -> f64 {
    if !(alpha > 0.0 && alpha < 0.5) || degrees == 0 {
        return f64::NAN;
    }
    let mut above = 1.0;
    while upper_tail(above, degrees) > alpha {
        above *= 2.0;
    }
    let mut below = 0.0;
    for _ in 0..MAX_HALVINGS {
        let middle = f64::midpoint(below, above);
        if middle <= below || middle >= above {
            break;
        }
        if upper_tail(middle, degrees) > alpha {
            below = middle;
        } else {
            above = middle;
        }
    }
    above
}

/// `P(T > t)`, as half of `1 - P(|T| < t)`.
fn upper_tail(t: f64, degrees: u32) -> f64 {
    let angle = libm::atan(t / libm::sqrt(f64::from(degrees)));
    let (sine, cosine) = (libm::sin(angle), libm::cos(angle));
    let square = cosine * cosine;
    // Powers of the cosine up to degrees - 2, with factors 2/3, 4/5, ... for odd
    // degrees and 1/2, 3/4, ... for even ones.
    let is_odd = degrees % 2 == 1;
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut next = if is_odd { 3 } else { 2 };
    while next + 2 <= degrees {
        term *= square * f64::from(next - 1) / f64::from(next);
        sum += term;
        next += 2;
    }
    let within = if is_odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum };
    (1.0 - within) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.t.isf(alpha, degrees)`, scipy 1.17.1; the first column of
    /// each is in printed tables too.
    #[test]
    fn quantiles_are_those_of_scipy() {
        for (degrees, alpha, expected) in [
            (1, 0.05, 6.313_751_514_675_043),
            (1, 0.001, 318.308_838_985_550_44),
            (2, 0.05, 2.919_985_580_353_725_6),
            (3, 0.05, 2.353_363_434_801_823_8),
            (4, 0.05, 2.131_846_786_326_650_4),
            (7, 0.05, 1.894_578_605_090_007_3),
            (19, 0.025, 2.093_024_054_408_309_6),
            (40, 0.001, 3.306_877_714_085_822_5),
            (63, 0.1, 1.295_134_293_782_888_2),
        ] {
            let found = upper_quantile(alpha, degrees);
            assert!(((found - expected) / expected).abs() < 1e-11, "{degrees} {alpha}: {found}");
        }
    }

    #[test]
    fn every_size_of_a_test_has_a_quantile_and_it_falls_with_the_degrees() {
        for alpha in [1e-6, 1e-3, 0.05, 0.1] {
            let quantiles: Vec<f64> = (1..=63).map(|degrees| upper_quantile(alpha, degrees)).collect();
            assert!(quantiles.is_sorted_by(|left, right| left > right), "{alpha}: {quantiles:?}");
        }
        assert!(upper_quantile(0.5, 3).is_nan() && upper_quantile(0.05, 0).is_nan());
        assert!(upper_quantile(f64::NAN, 3).is_nan());
    }
}
