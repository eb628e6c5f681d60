//! What stands between a contract and its freeze: a list, not the first item.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::strict::{Located, Position};

/// One reason why a contract cannot be frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreezeProblem {
    /// The file: the contract, or one that it names.
    pub file: PathBuf,
    /// RFC 6901 pointer into that file; empty for the whole of it.
    pub pointer: String,
    /// Where that is in the text; null where the file is no JSON text.
    pub position: Option<Position>,
    /// What is wrong: expected and actual.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl fmt::Display for FreezeProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(position) = self.position {
            write!(formatter, ":{}:{}", position.line, position.column)?;
        }
        if !self.pointer.is_empty() {
            write!(formatter, " {}", self.pointer)?;
        }
        write!(formatter, ": {}", self.message)
    }
}

/// Collects problems of one document.
#[derive(Debug)]
pub(super) struct Problems {
    file: PathBuf,
    positions: BTreeMap<String, Position>,
    list: Vec<FreezeProblem>,
}

impl Problems {
    /// For a file without places, or before its places are known.
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), positions: BTreeMap::new(), list: Vec::new() }
    }

    /// Takes the places of a document that was read.
    pub(super) fn locate(&mut self, positions: BTreeMap<String, Position>) {
        self.positions = positions;
    }

    /// Adds a problem.
    pub(super) fn add(
        &mut self,
        pointer: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let pointer = pointer.into();
        // `Located` owns the fallback to the nearest ancestor.
        let positions = std::mem::take(&mut self.positions);
        let located = Located { value: serde_json::Value::Null, positions };
        let position = located.position(&pointer);
        self.positions = located.positions;
        let problem = FreezeProblem {
            file: self.file.clone(),
            pointer,
            position,
            message: message.into(),
            hint: hint.into(),
        };
        self.list.push(problem);
    }

    /// Adds a problem unless `holds`.
    pub(super) fn require(
        &mut self,
        holds: bool,
        pointer: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if !holds {
            self.add(pointer, message, hint);
        }
    }

    /// Adds a problem where a text is empty or only white space.
    pub(super) fn require_text(&mut self, text: &str, pointer: impl Into<String>) {
        self.require(!text.trim().is_empty(), pointer, "is empty", "say it in words");
    }

    /// Adds a problem where a number is not in a half-open range of finite values.
    pub(super) fn require_between(
        &mut self,
        value: f64,
        range: std::ops::Range<f64>,
        pointer: impl Into<String>,
    ) {
        let message = format!("is {value:?}; expected at least {:?} and below {:?}", range.start, range.end);
        self.require(range.contains(&value), pointer, message, "choose a value in that range");
    }

    /// Adds a problem where a number is not finite and above zero.
    pub(super) fn require_positive(&mut self, value: f64, pointer: impl Into<String>) {
        let message = format!("is {value:?}; expected a finite value above 0");
        self.require(value.is_finite() && value > 0.0, pointer, message, "choose a value above 0");
    }

    /// Adds a problem where a count is 0.
    pub(super) fn require_count(&mut self, count: u64, pointer: impl Into<String>) {
        self.require(count > 0, pointer, "is 0; expected at least 1", "a count of 0 leaves nothing to do");
    }

    /// Takes over what another document's collector found.
    pub(super) fn extend(&mut self, other: Self) {
        self.list.extend(other.list);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub(super) fn into_list(self) -> Vec<FreezeProblem> {
        self.list
    }
}
