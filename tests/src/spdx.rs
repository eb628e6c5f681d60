//! Whether a license expression can be satisfied with the licenses that this
//! project admits.

use anyhow::{Result, bail};

/// Licenses that a dependency may be used under. MPL-2.0 asks for the source
/// of its own files only, which the package registry publishes.
pub const ADMITTED: [&str; 15] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether `expression` (SPDX, or the older `A/B` for a choice) can be
/// satisfied by [`ADMITTED`] alone.
///
/// # Errors
/// When it is not a license expression.
pub fn satisfiable(expression: &str) -> Result<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, next: 0 };
    let answer = parser.choice()?;
    if parser.next != words.len() {
        bail!("{expression:?}: not a license expression after {:?}", &words[..parser.next]);
    }
    Ok(answer)
}

struct Parser<'a> {
    words: &'a [&'a str],
    next: usize,
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.next) == Some(&word);
        self.next += usize::from(found);
        found
    }

    /// `OR` binds more loosely than `AND` (SPDX 2.3, annex D).
    fn choice(&mut self) -> Result<bool> {
        let mut answer = self.conjunction()?;
        while self.take("OR") {
            answer |= self.conjunction()?;
        }
        Ok(answer)
    }

    fn conjunction(&mut self) -> Result<bool> {
        let mut answer = self.term()?;
        while self.take("AND") {
            answer &= self.term()?;
        }
        Ok(answer)
    }

    fn term(&mut self) -> Result<bool> {
        if self.take("(") {
            let answer = self.choice()?;
            if !self.take(")") {
                bail!("a parenthesis is not closed");
            }
            return Ok(answer);
        }
        let Some(license) =
            self.words.get(self.next).filter(|word| !["OR", "AND", "WITH", ")"].contains(*word))
        else {
            bail!("a license is missing at word {}", self.next);
        };
        self.next += 1;
        if !self.take("WITH") {
            return Ok(ADMITTED.contains(license));
        }
        let Some(exception) = self.words.get(self.next) else {
            bail!("an exception is missing after {license} WITH");
        };
        self.next += 1;
        Ok(ADMITTED.contains(&format!("{license} WITH {exception}").as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::satisfiable;

    fn check(expression: &str, expected: bool) {
        let answer = satisfiable(expression).expect("a license expression");
        assert_eq!(answer, expected, "{expression}");
    }

    #[test]
    fn choices_and_conjunctions_are_told_apart() {
        check("MIT", true);
        check("GPL-3.0-only", false);
        check("Apache-2.0 OR GPL-2.0-only", true);
        check("Apache-2.0 AND GPL-2.0-only", false);
        check("(MIT OR GPL-2.0-only) AND Unicode-3.0", true);
        check("MIT OR GPL-2.0-only AND LGPL-2.1-only", true);
        check("Apache-2.0 WITH LLVM-exception", true);
        check("GPL-2.0-only WITH Classpath-exception-2.0", false);
        check("MIT/Apache-2.0", true);
    }

    #[test]
    fn malformed_expressions_are_errors() {
        for expression in ["", "MIT OR", "(MIT", "MIT MIT", "AND MIT", "MIT WITH"] {
            assert!(satisfiable(expression).is_err(), "{expression:?}");
        }
    }
}
