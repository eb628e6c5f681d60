//! Quantiles of Student's t distribution, for the interval of a statistical
//! probe (`docs/FORMAT.md`, "Statistical probes").
//!
//! The tail is half a regularised incomplete beta function (DLMF 8.17), which
//! is a continued fraction here (DLMF 8.17.22, by Lentz's method); the quantile
//! is found by halving. A quantile is looked up a few times an audit, so that
//! nothing needs to be fast.

/// Terms of the continued fraction; for the degrees of freedom of a probe it
/// takes fewer than 100.
const MAX_TERMS: u32 = 10_000;
/// Where a factor differs from 1 by less, a term changes nothing more.
const PRECISION: f64 = 1e-16;
/// Keeps Lentz's method off a division by 0.
const TINY: f64 = 1e-300;
/// Halvings after which an interval of binary64 has no middle.
const MAX_HALVINGS: u32 = 2_200;

/// `t` with `P(T > t) = alpha` for so many degrees of freedom; `None` outside
/// `0 < alpha < 0.5` and below one degree.
#[must_use]
pub fn upper_quantile(alpha: f64, degrees: f64) -> Option<f64> {
    if !(alpha > 0.0 && alpha < 0.5 && degrees >= 1.0 && degrees.is_finite()) {
        return None;
    }
    let mut above = 1.0;
    while upper_tail(above, degrees) > alpha {
        above *= 2.0;
        if above == f64::INFINITY {
            return None;
        }
    }
    let mut below = 0.0;
    for _ in 0..MAX_HALVINGS {
        let middle = below + (above - below) / 2.0;
        if middle <= below || middle >= above {
            break;
        }
        if upper_tail(middle, degrees) > alpha {
            below = middle;
        } else {
            above = middle;
        }
    }
    Some(above)
}

/// `P(T > t)` for `t >= 0`.
fn upper_tail(t: f64, degrees: f64) -> f64 {
    // x and 1 - x, each without cancellation.
    let square = t * t;
    let (x, rest) = (degrees / (degrees + square), square / (degrees + square));
    0.5 * regularised_beta(x, rest, degrees / 2.0, 0.5)
}

/// `I_x(a, b)`, where `rest` is `1 - x`.
fn regularised_beta(x: f64, rest: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if rest <= 0.0 {
        return 1.0;
    }
    let front = libm::exp(
        a * libm::log(x) + b * libm::log(rest) + libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b),
    );
    // The fraction converges fast below the mean, and its mirror above it.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * continued_fraction(x, a, b) / a
    } else {
        1.0 - front * continued_fraction(rest, b, a) / b
    }
}

fn continued_fraction(x: f64, a: f64, b: f64) -> f64 {
    let away = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut numerator = 1.0;
    let mut denominator = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut value = denominator;
    for term in 1..=MAX_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut factor = 1.0;
        for coefficient in [even, odd] {
            denominator = 1.0 / away(1.0 + coefficient * denominator);
            numerator = away(1.0 + coefficient / numerator);
            factor = numerator * denominator;
            value *= factor;
        }
        if (factor - 1.0).abs() < PRECISION {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by scipy and checked with mpmath; the file says how.
    const SCIPY: &str = include_str!("student_t.tsv");

    #[test]
    fn quantiles_are_those_of_scipy() {
        let mut num_checked = 0;
        for line in SCIPY.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<f64> = line.split('\t').map(|field| field.parse().expect("a number")).collect();
            let [degrees, alpha, expected] = fields[..] else { panic!("three numbers: {line}") };
            let found = upper_quantile(alpha, degrees).expect("within its domain");
            assert!(((found - expected) / expected).abs() < 1e-11, "{line}: {found}");
            num_checked += 1;
        }
        assert_eq!(num_checked, 105);
    }

    /// Table 2 of "Student", and of every textbook since: 5 % and 2.5 %.
    #[test]
    fn quantiles_are_those_of_printed_tables() {
        for (degrees, five, two_and_a_half) in
            [(1.0, 6.314, 12.706), (2.0, 2.920, 4.303), (9.0, 1.833, 2.262), (30.0, 1.697, 2.042)]
        {
            for (alpha, expected) in [(0.05, five), (0.025, two_and_a_half)] {
                let found = upper_quantile(alpha, degrees).expect("within its domain");
                assert!((found - expected).abs() < 5e-4, "{degrees} {alpha}: {found}");
            }
        }
    }

    #[test]
    fn nothing_outside_the_domain() {
        for (alpha, degrees) in
            [(0.0, 3.0), (0.5, 3.0), (-0.1, 3.0), (f64::NAN, 3.0), (0.05, 0.0), (0.05, f64::NAN)]
        {
            assert_eq!(upper_quantile(alpha, degrees), None, "{alpha} {degrees}");
        }
        assert!(upper_quantile(1e-300, 1.0).is_none_or(|quantile| quantile > 1e100));
    }
}
