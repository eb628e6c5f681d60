//! The class `statistical`: two one-sided t tests on paired differences
//! (Schuirmann, J. Pharmacokinet. Biopharm. 15:657, 1987).
//!
//! Equivalence is claimed only where both tests reject, which is where the
//! `1 - 2 alpha` interval of the mean difference lies within the margin. An
//! interval that is too wide shows nothing, and is said to show nothing. The
//! validator derives the same from the entry with code of its own.

use schemas::body::{ClassDistance, ProbeResultDet, RecordField, SeedPair};
use schemas::contract::{Contract, EquivalenceTest};
use schemas::number::Float;
use schemas::state::StateClass;
use serde::Serialize;

use super::{continuations, student};

/// What the pairs of a probe say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Equivalence {
    /// Level of each one-sided test.
    pub alpha: f64,
    /// Whether both one-sided tests reject.
    pub is_shown: bool,
    /// Lower end of the interval of the mean difference, resumed - reference.
    pub lower: Float,
    /// The margin on either side of 0.
    pub margin: f64,
    /// Mean difference.
    pub mean: Float,
    /// Pairs.
    pub num_seeds: u64,
    /// Upper end of the interval.
    pub upper: Float,
}

/// Judges pairs by a test. Where every difference is the same the interval is a
/// point: with deterministic kernels and a restore that is exact, the point 0.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a test has at most 64 seeds")]
pub fn equivalence(samples: &[SeedPair], test: &EquivalenceTest) -> Equivalence {
    let count = samples.len() as f64;
    let differences = || samples.iter().map(|pair| pair.resumed.value.0 - pair.reference.value.0);
    let mean = differences().sum::<f64>() / count;
    let squares = differences().map(|difference| (difference - mean) * (difference - mean)).sum::<f64>();
    let error = (squares / (count - 1.0) / count).sqrt();
    // Fewer than two pairs have no interval.
    let degrees = u32::try_from(samples.len().saturating_sub(1)).unwrap_or(0);
    let quantile = student::upper_quantile(test.alpha, degrees);
    let half_width = if error == 0.0 && degrees > 0 { 0.0 } else { quantile * error };
    let (lower, upper) = (mean - half_width, mean + half_width);
    Equivalence {
        alpha: test.alpha,
        // What is not a number is within nothing.
        is_shown: -test.margin < lower && upper < test.margin,
        lower: Float(lower),
        margin: test.margin,
        mean: Float(mean),
        num_seeds: samples.len() as u64,
        upper: Float(upper),
    }
}

impl Equivalence {
    /// Whether a control shows that the test can fail, and not for noise: its
    /// mean itself is beyond the margin.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        // A mean that is not a number is beyond any margin.
        !(-self.margin..=self.margin).contains(&self.mean.0)
    }

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { alpha, lower, margin, mean, num_seeds, upper, .. } = self;
        let verdict = if self.is_shown {
            format!("equivalent within ±{margin:?} at alpha {alpha:?}")
        } else {
            format!("equivalence within ±{margin:?} at alpha {alpha:?} not shown")
        };
        if (lower.0, upper.0) == (0.0, 0.0) {
            return format!("{verdict}: all {num_seeds} differences are 0");
        }
        let percent = 100.0 * (1.0 - 2.0 * alpha);
        format!(
            "{verdict}: mean difference {:.3e}, {percent:.3} % interval [{:.3e}, {:.3e}], {num_seeds} seeds",
            mean.0, lower.0, upper.0
        )
    }
}

/// The outcome of a result under a statistical contract; none under another.
#[must_use]
pub fn outcome(det: &ProbeResultDet, contract: &Contract) -> Option<Equivalence> {
    continuations::test(contract).map(|test| equivalence(&det.samples, test))
}

/// Whether a result is within the class: the same examples and counters, what
/// does not hang on the last bits of a number equal, numbers comparable, and
/// equivalence shown.
#[must_use]
pub fn is_met(det: &ProbeResultDet, contract: &Contract, ignored: &[StateClass]) -> bool {
    let has_coverage = det.samples.iter().all(|pair| pair.reference.ids == pair.resumed.ids)
        && det.records.iter().all(|record| match record.record {
            RecordField::Counters | RecordField::Draws => record.equal,
            _ => true,
        });
    let mut classes = det.distances.iter().filter(|class| !ignored.contains(&class.class));
    has_coverage
        && classes.all(is_comparable)
        && outcome(det, contract).is_some_and(|equivalence| equivalence.is_shown)
}

fn is_comparable(class: &ClassDistance) -> bool {
    match class.class {
        // Where data and randomness are, and what executes.
        StateClass::DataCursor
        | StateClass::Sampler
        | StateClass::RngCpu
        | StateClass::RngDevice
        | StateClass::Topology
        | StateClass::CompilerPlan => class.equal,
        // Decisions that follow from a loss or an evaluation.
        StateClass::Scheduler | StateClass::SelectionState | StateClass::LossScaler => true,
        // Tensors: of the same names, dtypes and shapes, and finite.
        _ => class.distance.max_absolute.0.is_finite(),
    }
}

#[cfg(test)]
mod tests {
    use schemas::body::Continuation;
    use schemas::contract::{EquivalenceMetric, VariedDraws};
    use schemas::digest::Digest;
    use schemas::number::DecimalU64;

    use super::*;

    fn test(alpha: f64, margin: f64) -> EquivalenceTest {
        EquivalenceTest {
            alpha,
            margin,
            metric: EquivalenceMetric::TrainingLoss,
            num_steps: 4,
            seeds: Vec::new(),
            varies: vec![VariedDraws::DataOrder],
        }
    }

    fn pairs(differences: &[f64]) -> Vec<SeedPair> {
        let side = |value| Continuation { ids: Digest::sha256([1; 32]), value: Float(value) };
        let pair = |difference: &f64| SeedPair {
            reference: side(0.0),
            resumed: side(*difference),
            seed: DecimalU64(0),
        };
        differences.iter().map(pair).collect()
    }

    /// Sleep of ten patients under two soporifics (Student, Biometrika 6:1,
    /// 1908), as differences: mean 1.58, standard error 0.38896, and with
    /// t(0.95, 9) = 1.83311 the 90 % interval 0.86699 to 2.29301.
    #[test]
    fn the_interval_is_students() {
        let sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let found = equivalence(&pairs(&sleep), &test(0.05, 2.3));
        assert!((found.mean.0 - 1.58).abs() < 1e-12, "{found:?}");
        assert!((found.lower.0 - 0.866_99).abs() < 1e-5, "{found:?}");
        assert!((found.upper.0 - 2.293_01).abs() < 1e-5, "{found:?}");
        assert!(found.is_shown);
        assert!(!equivalence(&pairs(&sleep), &test(0.05, 2.29)).is_shown);
        // The mean is within, and the interval is not: nothing is shown.
        let wide = equivalence(&pairs(&sleep), &test(0.05, 1.6));
        assert!(!wide.is_shown && !wide.is_apart());
        assert!(
            wide.text().starts_with("equivalence within ±1.6 at alpha 0.05 not shown: mean"),
            "{}",
            wide.text()
        );
    }

    #[test]
    fn equal_differences_are_a_point_and_the_margin_itself_is_not_within_it() {
        let equal = equivalence(&pairs(&[0.0; 3]), &test(0.05, 1e-9));
        assert!(equal.is_shown && !equal.is_apart());
        assert_eq!(equal.text(), "equivalent within ±1e-9 at alpha 0.05: all 3 differences are 0");
        let apart = equivalence(&pairs(&[0.25; 3]), &test(0.05, 0.125));
        assert!(!apart.is_shown && apart.is_apart());
        let at_margin = equivalence(&pairs(&[0.25; 3]), &test(0.05, 0.25));
        assert!(!at_margin.is_shown && !at_margin.is_apart());
    }

    #[test]
    fn what_is_not_a_number_or_not_there_is_never_equivalent() {
        for differences in [vec![], vec![0.0], vec![0.0, f64::NAN, 0.0], vec![f64::INFINITY; 3]] {
            let found = equivalence(&pairs(&differences), &test(0.05, 0.5));
            assert!(!found.is_shown, "{found:?}");
        }
        assert!(equivalence(&pairs(&[f64::NAN; 3]), &test(0.05, 0.5)).is_apart());
    }
}
