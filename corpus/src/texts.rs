//! The text that comes with the project, and how a text is split.
//!
//! A split is contiguous: the first part trains, the next selects, the last
//! qualifies. Neighbouring paragraphs share names and phrases, so a random
//! split would leak more from train into val.

/// Where [`liber_primus`] comes from, for [`schemas::data::DataShard::source`].
pub const LIBER_PRIMUS_SOURCE: &str =
    "Cicero, De finibus bonorum et malorum, liber primus; as embedded by the crate lipsum 0.9";

/// Shares of a text by split, as whole numbers in any unit; `(80, 10, 10)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// The share drawn for updates.
    pub train: u32,
    /// The share that selects.
    pub val: u32,
    /// The share that is sealed; may be 0 for none.
    pub qualification: u32,
}

impl Shares {
    /// What the quick start uses.
    pub const EIGHTY_TEN_TEN: Self = Self { train: 80, val: 10, qualification: 10 };
    /// What a user's own text is split into by default.
    pub const NINETY_FIVE_FIVE: Self = Self { train: 90, val: 5, qualification: 5 };

    /// Where train ends and where val ends, in units of `total`.
    pub(crate) fn boundaries(self, total: u64) -> (u64, u64) {
        let sum = u128::from(self.train) + u128::from(self.val) + u128::from(self.qualification);
        let at = |share: u128| {
            let value = u128::from(total) * share / sum.max(1);
            u64::try_from(value).unwrap_or(total)
        };
        let train = u128::from(self.train);
        (at(train), at(train + u128::from(self.val)))
    }
}

/// A text by split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitText {
    /// The first part.
    pub train: String,
    /// The part after it.
    pub val: String,
    /// The last part.
    pub qualification: String,
}

/// The first book of Cicero's *De finibus*, as `lipsum` embeds it: 49,068
/// bytes of ASCII in paragraphs.
#[must_use]
pub fn liber_primus() -> &'static str {
    lipsum::LIBER_PRIMUS
}

/// The paragraphs of a text: what stands between empty lines, without the
/// line breaks at either end. Paragraphs without content do not count.
pub fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n\n").map(|paragraph| paragraph.trim_matches('\n')).filter(|paragraph| !paragraph.is_empty())
}

/// Splits a text by paragraphs.
///
/// Paragraph `i` goes to train as long as the paragraphs before it hold less
/// than the share of train of all paragraphs' bytes, then to val as long as
/// they hold less than train and val together, then to qualification. Each
/// part is its paragraphs, joined by an empty line and ended by a line break.
#[must_use]
pub fn split_paragraphs(text: &str, shares: Shares) -> SplitText {
    let total: u64 = paragraphs(text).map(|paragraph| paragraph.len() as u64).sum();
    let (train_end, val_end) = shares.boundaries(total);
    let mut parts: [Vec<&str>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let mut before = 0u64;
    for paragraph in paragraphs(text) {
        let part = usize::from(before >= train_end) + usize::from(before >= val_end);
        parts[part].push(paragraph);
        before += paragraph.len() as u64;
    }
    let [train, val, qualification] = parts.map(|part| {
        let mut joined = part.join("\n\n");
        if !joined.is_empty() {
            joined.push('\n');
        }
        joined
    });
    SplitText { train, val, qualification }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liber_primus_splits_into_three_contiguous_parts_without_loss() {
        let text = liber_primus();
        let split = split_paragraphs(text, Shares::EIGHTY_TEN_TEN);
        let all: Vec<&str> = paragraphs(text).collect();
        let again: Vec<&str> = [&split.train, &split.val, &split.qualification]
            .into_iter()
            .flat_map(|part| paragraphs(part))
            .collect();
        assert_eq!(again, all);
        let total = text.len();
        assert!(split.train.len() * 100 / total >= 78, "train has {} bytes", split.train.len());
        assert!(split.val.len() * 100 / total >= 7, "val has {} bytes", split.val.len());
        assert!(
            split.qualification.len() * 100 / total >= 7,
            "qualification has {}",
            split.qualification.len()
        );
    }

    #[test]
    fn a_share_of_zero_gets_nothing() {
        let shares = Shares { train: 1, val: 1, qualification: 0 };
        let split = split_paragraphs("a\n\nb\n\n\n\nc\n\nd\n", shares);
        assert_eq!(split.train, "a\n\nb\n");
        assert_eq!(split.val, "c\n\nd\n");
        assert_eq!(split.qualification, "");
    }
}
