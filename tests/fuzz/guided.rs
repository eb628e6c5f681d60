//! Fuzzing that is guided by coverage: libFuzzer, which bolero brings along, keeps
//! an input that reaches code which no earlier one reached, and changes it further.
//!
//! It needs a program whose branches count, which `scripts/fuzz --guided` builds and
//! runs; nothing here can guide another one. What was found is put into the corpus
//! by the properties' own word, under names that say whether it is accepted.

use std::panic::RefUnwindSafe;
use std::path::{Path, PathBuf};

use bolero::check;
use system_tests::random::Random;

use super::corpus::{self, Seed};

/// Names the folder in which libFuzzer works: it gets the seeds in `seeds`.
const FOLDER: &str = "FUZZ_GUIDED";

/// Names a folder of inputs, some of which are put into the corpus.
const TAKE: &str = "FUZZ_TAKE";

/// How many of them.
const NUM_TAKEN: &str = "FUZZ_NUM_TAKEN";

/// Longest input. bolero would cut what is longer than 4 KiB, and many seeds are;
/// libFuzzer itself makes none that is longer than the longest seed.
const MAX_INPUT_BYTES: usize = 1 << 20;

/// Digits of a digest in the name of an input; there are few of a target.
const NAME_DIGITS: usize = 8;

/// What a target is asked for instead of what a test does.
pub(crate) enum Asked {
    /// To let libFuzzer choose the inputs, in a folder.
    Guide(PathBuf),
    /// To put the inputs in a folder into the corpus.
    Take(PathBuf),
}

/// What is asked for, if anything.
pub(crate) fn asked() -> Option<Asked> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    folder(TAKE).map(Asked::Take).or_else(|| folder(FOLDER).map(Asked::Guide))
}

impl Asked {
    /// Does that with a target. libFuzzer ends the process itself, so that coming
    /// back from it means that it is not there.
    pub(crate) fn explore(
        &self,
        name: &str,
        seeds: &[Seed],
        property: impl Fn(&[u8]) -> bool + RefUnwindSafe,
    ) {
        match self {
            Self::Guide(folder) => {
                write_seeds(&folder.join("seeds"), seeds).expect("the seeds can be written");
                guide(name, property);
                panic!("this program cannot be guided; run `scripts/fuzz {name} --guided`");
            }
            Self::Take(folder) => {
                let num_taken = std::env::var(NUM_TAKEN).ok().and_then(|text| text.parse().ok());
                let num_taken = num_taken.expect("FUZZ_NUM_TAKEN is a number");
                take(name, folder, num_taken, property).expect("the corpus can be written");
            }
        }
    }
}

/// Hands a property over to libFuzzer.
fn guide(name: &str, property: impl Fn(&[u8]) -> bool + RefUnwindSafe) {
    check!(name = format!("guided_{name}")).with_max_len(MAX_INPUT_BYTES).for_each(|bytes: &[u8]| {
        let _ = property(bytes);
    });
}

/// The seeds as the target makes them of its corpus.
fn write_seeds(folder: &Path, seeds: &[Seed]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    seeds.iter().try_for_each(|seed| std::fs::write(folder.join(&seed.name), &seed.bytes))
}

/// Puts inputs into the corpus of a target: what is accepted first, since edits of it
/// reach furthest, and of two the smaller one.
fn take(
    name: &str,
    from: &Path,
    num_taken: usize,
    property: impl Fn(&[u8]) -> bool + RefUnwindSafe,
) -> std::io::Result<()> {
    let mut inputs = Vec::new();
    for file in std::fs::read_dir(from)? {
        let bytes = std::fs::read(file?.path())?;
        inputs.push((!property(&bytes), bytes.len(), bytes));
    }
    inputs.sort_unstable();
    for (is_refused, _, bytes) in inputs.into_iter().take(num_taken) {
        let refused = if is_refused { "refused-" } else { "" };
        let digest = blake3::hash(&bytes).to_hex();
        let path = corpus::folder(name).join(format!("{refused}guided-{}", &digest[..NAME_DIGITS]));
        std::fs::write(&path, &bytes)?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// Opens at five bytes. Each is a branch of its own, so that whoever sees branches
/// finds them one after the other, and nobody else finds them at all.
fn is_open(bytes: &[u8]) -> bool {
    macro_rules! is {
        ($place:literal, $expected:literal) => {
            if bytes.get($place) != Some(&$expected) {
                return false;
            }
            // Not one comparison of five bytes, which could be read off at once.
            std::hint::black_box($place);
        };
    }
    is!(0, b'g');
    is!(1, b'u');
    is!(2, b'i');
    is!(3, b'd');
    is!(4, b'e');
    true
}

/// The control of the others: what guidance alone can find. `scripts/fuzz --guided`
/// asks for it first and goes on only when it is found.
#[test]
fn control() {
    /// Inputs that are tried without guidance, at random.
    const NUM_RANDOM: u64 = 100_000;
    if let Some(asked) = asked() {
        return asked.explore("control", &[], |bytes| {
            assert!(!is_open(bytes), "guidance opened the lock");
            true
        });
    }
    let mut random = Random::new(1);
    for _ in 0..NUM_RANDOM {
        let bytes = random.next_u64().to_le_bytes();
        assert!(!is_open(&bytes), "{bytes:?}");
    }
    assert!(is_open(b"guide"), "there is a key");
}
