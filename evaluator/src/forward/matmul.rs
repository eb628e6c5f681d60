//! Matrix products with exact products and sums in a fixed order.
//!
//! `C[t][n] = sum over k, ascending, of A[t][k] * B[n][k]`, one binary64
//! accumulator an output. Operands hold binary32 values, so a product has at
//! most 48 significant bits and is exact: a fused multiply-add and a multiply
//! followed by an add give the same bits, and vectors run over `n`, never over
//! `k`. The vector width is chosen at run time and cannot be seen in a result.

use pulp::{Arch, Simd, WithSimd};

/// Outputs side by side in a panel.
const PANEL: usize = 8;

/// Rounds to binary32, which every operand of a product is.
#[allow(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
pub(super) fn rounded(value: f64) -> f64 {
    f64::from(value as f32)
}

/// A right-hand side, packed: panels of [`PANEL`] outputs, each with the inner
/// index outside, missing outputs as zeros.
#[derive(Debug, Clone, Default)]
pub(super) struct Packed {
    inner: usize,
    outputs: usize,
    panels: Vec<f64>,
}

impl Packed {
    /// Packs `at(n, k)` for `n` below `outputs` and `k` below `inner`, into
    /// the memory that `self` has.
    pub(super) fn fill(&mut self, outputs: usize, inner: usize, at: impl Fn(usize, usize) -> f64) {
        self.inner = inner;
        self.outputs = outputs;
        self.panels.clear();
        self.panels.reserve(outputs.div_ceil(PANEL) * inner * PANEL);
        for first in (0..outputs).step_by(PANEL) {
            for k in 0..inner {
                for n in first..first + PANEL {
                    self.panels.push(if n < outputs { at(n, k) } else { 0.0 });
                }
            }
        }
    }

    /// Packs a row-major `[outputs, inner]` matrix.
    pub(super) fn from_rows(rows: &[f32], outputs: usize, inner: usize) -> Self {
        let mut packed = Self::default();
        packed.fill(outputs, inner, |n, k| f64::from(rows[n * inner + k]));
        packed
    }
}

/// Which rows and inner indices take part.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// All of them.
    Full,
    /// Row `t` needs outputs `0..=t` alone; others may be left as they are.
    CausalOutputs,
    /// Row `t` has zeros at inner indices above `t`, which may be skipped.
    CausalInner,
}

/// `left` is row-major `[rows, left_stride]`, of which the first `inner`
/// columns count; the result goes to `out`, row-major `[rows, out_stride]`.
pub(super) struct Product<'a> {
    pub(super) left: &'a [f64],
    pub(super) left_stride: usize,
    pub(super) rows: usize,
    pub(super) right: &'a Packed,
    pub(super) extent: Extent,
    pub(super) out: &'a mut [f64],
    pub(super) out_stride: usize,
}

impl Product<'_> {
    /// Computes it with the widest vectors that the processor has.
    pub(super) fn compute(self, arch: Arch) {
        arch.dispatch(self);
    }

    #[inline(always)]
    fn run<S: Simd, const VECTORS: usize>(&mut self, simd: S) {
        let full = self.rows - self.rows % 4;
        for panel in 0..self.right.outputs.div_ceil(PANEL) {
            let mut row = 0;
            while row < full {
                self.block::<S, VECTORS, 4>(simd, panel, row);
                row += 4;
            }
            while row < self.rows {
                self.block::<S, VECTORS, 1>(simd, panel, row);
                row += 1;
            }
        }
    }

    /// `ROWS` rows by one panel.
    #[inline(always)]
    fn block<S: Simd, const VECTORS: usize, const ROWS: usize>(&mut self, simd: S, panel: usize, row: usize) {
        let first = panel * PANEL;
        let last_row = row + ROWS - 1;
        let inner = match self.extent {
            Extent::CausalOutputs if first > last_row => return,
            Extent::CausalInner => self.right.inner.min(last_row + 1),
            Extent::Full | Extent::CausalOutputs => self.right.inner,
        };
        let start = panel * self.right.inner * PANEL;
        let panel = &self.right.panels[start..start + inner * PANEL];
        let left: [&[f64]; ROWS] = std::array::from_fn(|r| {
            let at = (row + r) * self.left_stride;
            &self.left[at..at + inner]
        });
        let mut sums = [[simd.splat_f64s(0.0); VECTORS]; ROWS];
        let (columns, _) = panel.as_chunks::<PANEL>();
        for (k, column) in columns.iter().enumerate() {
            let (vectors, _) = S::as_simd_f64s(column);
            for r in 0..ROWS {
                let value = simd.splat_f64s(left[r][k]);
                for v in 0..VECTORS {
                    sums[r][v] = simd.mul_add_e_f64s(value, vectors[v], sums[r][v]);
                }
            }
        }
        let width = PANEL.min(self.right.outputs - first);
        for (r, sums) in sums.iter().enumerate() {
            let mut lanes = [0.0; PANEL];
            let (places, _) = S::as_mut_simd_f64s(&mut lanes);
            for (place, sum) in places.iter_mut().zip(sums) {
                *place = *sum;
            }
            let at = (row + r) * self.out_stride + first;
            // A copy of known length compiles to vector stores, not to a call.
            match self.out[at..].first_chunk_mut::<PANEL>() {
                Some(place) if width == PANEL => *place = lanes,
                _ => self.out[at..at + width].copy_from_slice(&lanes[..width]),
            }
        }
    }
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        match S::F64_LANES {
            8 => self.run::<S, 1>(simd),
            4 => self.run::<S, 2>(simd),
            2 => self.run::<S, 4>(simd),
            _ => self.run::<S, 8>(simd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values whose products and sums round, so that order would show.
    fn value(index: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "small integers")]
        let angle = (index as f64 * 12.9898).sin() * 43_758.547;
        rounded(angle.fract() * 10f64.powi(i32::try_from(index % 7).expect("small") - 3))
    }

    fn check(rows: usize, outputs: usize, inner: usize, extent: Extent) {
        let mut left: Vec<f64> = (0..rows * inner).map(value).collect();
        if matches!(extent, Extent::CausalInner) {
            for t in 0..rows {
                left[t * inner..(t + 1) * inner][(t + 1).min(inner)..].fill(0.0);
            }
        }
        let right: Vec<f64> = (0..outputs * inner).map(|index| value(index + 1_000)).collect();
        let mut packed = Packed::default();
        packed.fill(outputs, inner, |n, k| right[n * inner + k]);
        let mut results = Vec::new();
        for simd in [false, true] {
            let mut out = vec![0.0; rows * outputs];
            let (left_stride, out_stride) = (inner, outputs);
            let product =
                Product { left: &left, left_stride, rows, right: &packed, extent, out: &mut out, out_stride };
            if simd {
                product.compute(Arch::new());
            } else {
                product.with_simd(pulp::Scalar::new());
            }
            results.push(out);
        }
        for t in 0..rows {
            for n in 0..outputs {
                if matches!(extent, Extent::CausalOutputs) && n > t {
                    continue;
                }
                let mut sum = 0.0f64;
                for k in 0..inner {
                    sum += left[t * inner + k] * right[n * inner + k];
                }
                for out in &results {
                    assert_eq!(
                        out[t * outputs + n].to_bits(),
                        sum.to_bits(),
                        "{rows}x{outputs}x{inner} at {t}, {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_shape_gives_the_bits_of_the_plain_sum_with_and_without_vectors() {
        for extent in [Extent::Full, Extent::CausalOutputs, Extent::CausalInner] {
            for (rows, outputs, inner) in
                [(1, 1, 1), (4, 8, 16), (5, 9, 3), (7, 16, 33), (13, 13, 13), (3, 31, 70)]
            {
                check(rows, outputs, inner, extent);
            }
        }
    }
}
