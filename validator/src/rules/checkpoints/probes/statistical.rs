//! The class `statistical`: what its test says of a probe's raw numbers.
//!
//! Two one-sided t tests on paired differences (Schuirmann 1987); both reject
//! where the `1 - 2 alpha` interval of the mean lies within the margin
//! (`docs/FORMAT.md`, "Statistical probes").

use schemas::body::{ClassDistance, ProbeResultDet, RecordField, SeedPair};
use schemas::contract::{Contract, EquivalenceClass, EquivalenceTest, GroupSchedule, ScheduleShape};
use schemas::state::StateClass;

use crate::derive::student;

/// Interval of a mean difference, resumed less reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    pub(super) lower: f64,
    pub(super) mean: f64,
    pub(super) upper: f64,
}

impl Interval {
    /// Of these pairs; what has no interval has one that is not a number.
    #[allow(clippy::cast_precision_loss, reason = "an entry holds fewer than 2^16 pairs")]
    pub(super) fn of(samples: &[SeedPair], alpha: f64) -> Self {
        let count = samples.len() as f64;
        let differences: Vec<f64> =
            samples.iter().map(|pair| pair.resumed.value.0 - pair.reference.value.0).collect();
        let mean = differences.iter().sum::<f64>() / count;
        let squared = differences.iter().map(|difference| (difference - mean) * (difference - mean));
        let error = libm::sqrt(squared.sum::<f64>() / (count * (count - 1.0)));
        let half_width = match student::upper_quantile(alpha, count - 1.0) {
            // Differences that are all the same: the interval is a point.
            Some(_) if error == 0.0 => 0.0,
            Some(quantile) => quantile * error,
            None => f64::NAN,
        };
        Self { lower: mean - half_width, mean, upper: mean + half_width }
    }

    /// Whether both one-sided tests reject.
    pub(super) fn is_within(&self, margin: f64) -> bool {
        self.lower > -margin && self.upper < margin
    }

    /// Whether the mean itself is beyond the margin.
    pub(super) fn is_apart(&self, margin: f64) -> bool {
        !(-margin..=margin).contains(&self.mean)
    }
}

/// The test of a statistical contract.
pub(super) fn test(contract: &Contract) -> Option<&EquivalenceTest> {
    contract.resume.test.as_ref().filter(|_| contract.resume.class == EquivalenceClass::Statistical)
}

/// In words: what would be shown, and what the pairs give.
pub(super) fn told(samples: &[SeedPair], test: &EquivalenceTest) -> (String, String) {
    let interval = Interval::of(samples, test.alpha);
    let expected = format!("equivalent within ±{:?} at alpha {:?}", test.margin, test.alpha);
    let actual = format!(
        "equivalence not shown: mean difference {:e}, interval [{:e}, {:e}], {} seeds",
        interval.mean,
        interval.lower,
        interval.upper,
        samples.len()
    );
    (expected, actual)
}

/// Whether a control shows that the test can fail; of no account in another
/// class.
pub(super) fn is_control(det: &ProbeResultDet, contract: &Contract) -> bool {
    // What was lost may end in no number; what it is compared with may not.
    let has_references = |det: &ProbeResultDet| {
        det.samples.len() > 1 && det.samples.iter().all(|pair| pair.reference.value.is_finite())
    };
    test(contract).is_none_or(|test| {
        has_references(det) && Interval::of(&det.samples, test.alpha).is_apart(test.margin)
    })
}

/// What of a result is beyond the class, leaving out these state classes.
pub(super) fn beyond(det: &ProbeResultDet, contract: &Contract, left_out: &[StateClass]) -> Vec<String> {
    let mut found = Vec::new();
    let exact = det.records.iter().filter(|record| {
        matches!(record.record, RecordField::Counters | RecordField::Draws)
            && !(record.equal && record.distance.num_different == 0)
    });
    found.extend(exact.map(|record| format!("step record {}", record.record.name())));
    let classes = det.distances.iter().filter(|class| !left_out.contains(&class.class));
    found.extend(classes.filter(|class| !is_comparable(class, contract)).map(|class| {
        let tensor = class.first_tensor.as_deref().unwrap_or("unnamed");
        format!("{} ({tensor})", class.class)
    }));
    let other_ids = det.samples.iter().filter(|pair| pair.reference.ids != pair.resumed.ids);
    found.extend(other_ids.map(|pair| format!("examples of seed {}", pair.seed.0)));
    match test(contract) {
        Some(test) if Interval::of(&det.samples, test.alpha).is_within(test.margin) => {}
        Some(test) => found.push(told(&det.samples, test).1),
        None => found.push("no test is frozen".to_owned()),
    }
    found
}

/// What does not hang on the last bits of a number is equal, and numbers are
/// comparable.
fn is_comparable(class: &ClassDistance, contract: &Contract) -> bool {
    let follows_losses = |group: &GroupSchedule| matches!(group.shape, ScheduleShape::Plateau { .. });
    match class.class {
        // A closed schedule is a function of the step.
        StateClass::Scheduler if !contract.schedule.iter().any(follows_losses) => class.equal,
        StateClass::DataCursor
        | StateClass::Sampler
        | StateClass::RngCpu
        | StateClass::RngDevice
        | StateClass::Topology
        | StateClass::CompilerPlan => class.equal && class.reference == class.resumed,
        StateClass::Scheduler | StateClass::SelectionState | StateClass::LossScaler => true,
        _ => class.distance.max_absolute.0.is_finite(),
    }
}

#[cfg(test)]
mod tests {
    use schemas::body::Continuation;
    use schemas::digest::Digest;
    use schemas::number::{DecimalU64, Float};

    use super::*;

    fn pairs(differences: &[f64]) -> Vec<SeedPair> {
        let side = |value| Continuation { ids: Digest::sha256([1; 32]), value: Float(value) };
        let pair = |difference: &f64| SeedPair {
            reference: side(1.0),
            resumed: side(1.0 + difference),
            seed: DecimalU64(0),
        };
        differences.iter().map(pair).collect()
    }

    /// Three differences of mean 0 and standard deviation 1, by hand: the
    /// standard error is 0.57735 and t(0.95, 2) = 2.91999.
    #[test]
    fn an_interval_by_hand() {
        let interval = Interval::of(&pairs(&[-1.0, 0.0, 1.0]), 0.05);
        assert!((interval.upper - 1.685_855).abs() < 1e-5, "{interval:?}");
        assert!((interval.lower + interval.upper).abs() < 1e-12);
        assert!(interval.is_within(1.69) && !interval.is_within(1.68));
        assert!(!interval.is_apart(0.1));
    }

    #[test]
    fn a_point_is_an_interval_and_nothing_is_none() {
        let equal = Interval::of(&pairs(&[0.0; 3]), 0.05);
        assert!(equal.is_within(1e-12) && !equal.is_apart(1e-12));
        let apart = Interval::of(&pairs(&[0.5; 3]), 0.05);
        assert!(!apart.is_within(0.5) && !apart.is_apart(0.5) && apart.is_apart(0.49));
        for differences in [vec![], vec![0.0], vec![0.0, f64::NAN], vec![f64::INFINITY; 3]] {
            assert!(!Interval::of(&pairs(&differences), 0.05).is_within(1.0), "{differences:?}");
        }
    }
}
