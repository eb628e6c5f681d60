//! Curves in bounded memory: however long a run, a curve keeps at most
//! [`MAX_BUCKETS`] buckets, each with its smallest and largest value, so that
//! a spike of one step survives any zoom. Values that are not finite are
//! counted and their first steps kept, and never drawn as a number.

use serde::Serialize;

/// Buckets of one curve; twice as many points are drawn.
const MAX_BUCKETS: usize = 1_000;

/// Steps with values that are not finite, of which at most this many are named.
const MAX_NOT_FINITE: usize = 100;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    minimum: (u64, f64),
    maximum: (u64, f64),
}

/// One curve of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Null for evaluation streams, which are drawn over all attempts.
    pub(crate) attempt: Option<u32>,
    buckets: Vec<Bucket>,
    steps_per_bucket: usize,
    steps_in_last: usize,
    num_not_finite: u64,
    not_finite: Vec<u64>,
}

/// A curve as points, for charts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Points {
    pub(crate) attempt: Option<u32>,
    pub(crate) name: String,
    pub(crate) not_finite_steps: Vec<u64>,
    pub(crate) num_not_finite: u64,
    pub(crate) steps: Vec<u64>,
    pub(crate) steps_per_bucket: usize,
    pub(crate) values: Vec<f64>,
}

impl Curve {
    pub(crate) fn new(name: &str, attempt: Option<u32>) -> Self {
        Self {
            name: name.to_owned(),
            attempt,
            buckets: Vec::new(),
            steps_per_bucket: 1,
            steps_in_last: 0,
            num_not_finite: 0,
            not_finite: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            self.num_not_finite += 1;
            if self.not_finite.len() < MAX_NOT_FINITE {
                self.not_finite.push(step);
            }
            return;
        }
        let point = (step, value);
        match self.buckets.last_mut() {
            Some(bucket) if self.steps_in_last < self.steps_per_bucket => bucket.include(point),
            _ => {
                self.buckets.push(Bucket { minimum: point, maximum: point });
                self.steps_in_last = 0;
            }
        }
        self.steps_in_last += 1;
        if self.buckets.len() > MAX_BUCKETS {
            self.merge_pairs();
        }
    }

    fn merge_pairs(&mut self) {
        let half_full = !self.buckets.len().is_multiple_of(2);
        let merged = self.buckets.chunks(2).map(|pair| match pair {
            [first, second] => first.merged(*second),
            rest => rest[0],
        });
        self.buckets = merged.collect();
        self.steps_in_last += if half_full { 0 } else { self.steps_per_bucket };
        self.steps_per_bucket *= 2;
    }

    pub(crate) fn points(&self) -> Points {
        let mut steps = Vec::with_capacity(self.buckets.len() * 2);
        let mut values = Vec::with_capacity(self.buckets.len() * 2);
        for bucket in &self.buckets {
            let mut pair = [bucket.minimum, bucket.maximum];
            pair.sort_by_key(|(step, _)| *step);
            let num_points = if pair[0].0 == pair[1].0 { 1 } else { 2 };
            for (step, value) in pair.iter().take(num_points) {
                steps.push(*step);
                values.push(*value);
            }
        }
        Points {
            attempt: self.attempt,
            name: self.name.clone(),
            not_finite_steps: self.not_finite.clone(),
            num_not_finite: self.num_not_finite,
            steps,
            steps_per_bucket: self.steps_per_bucket,
            values,
        }
    }
}

impl Bucket {
    fn include(&mut self, point: (u64, f64)) {
        if point.1 < self.minimum.1 {
            self.minimum = point;
        }
        if point.1 > self.maximum.1 {
            self.maximum = point;
        }
    }

    fn merged(mut self, other: Self) -> Self {
        self.include(other.minimum);
        self.include(other.maximum);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_survives_a_million_steps_in_bounded_memory() {
        let mut curve = Curve::new("loss", Some(1));
        for step in 1..=1_000_000_u64 {
            curve.push(step, if step == 777_777 { 99.0 } else { 1.0 });
        }
        let points = curve.points();
        assert!(points.steps.len() <= 2 * MAX_BUCKETS);
        let spike = points.steps.iter().position(|step| *step == 777_777).expect("the spike is kept");
        assert!((points.values[spike] - 99.0).abs() < f64::EPSILON);
        assert!(points.steps.windows(2).all(|pair| pair[0] < pair[1]), "steps ascend");
    }

    #[test]
    fn a_nan_is_counted_and_not_drawn() {
        let mut curve = Curve::new("loss", Some(1));
        curve.push(1, 2.0);
        curve.push(2, f64::NAN);
        curve.push(3, 1.0);
        let points = curve.points();
        assert_eq!(points.steps, [1, 3]);
        assert_eq!((points.num_not_finite, points.not_finite_steps), (1, vec![2]));
    }
}
