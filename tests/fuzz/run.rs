//! What every target does with its property: the corpus, edits of it from fixed
//! seeds, and, where `FUZZ_SECONDS` says so, edits from new ones. Inputs that are
//! chosen by what they reach are the business of `guided`.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use bolero::generator::bolero_generator::driver::{ByteSliceDriver, Options};
use bolero::{TypeGenerator, check};
use system_tests::random::Random;

use super::corpus::{self, Seed};
use super::edit::{Edits, edited};
use super::guided;
use super::memory::{self, Alone};

/// Edits that an ordinary test makes: a few seconds.
const NUM_EDITS: u64 = 5_000;

/// Bytes that decide one set of edits.
const DECIDING_WORDS: usize = 128;

/// Asks for so many seconds of edits from new seeds.
const SECONDS: &str = "FUZZ_SECONDS";

/// The corpus of a target, through its property.
pub(crate) fn target(name: &str, property: impl Fn(&[u8]) -> bool + RefUnwindSafe) {
    with_seeds(&memory::alone(), name, &corpus::read(name), property);
}

/// The same with seeds that are made of the corpus. The property says whether
/// both sides accepted. Whoever asks for it is alone already: what is made for a
/// target would be measured as another one's.
#[track_caller]
pub(crate) fn with_seeds(
    _alone: &Alone,
    name: &str,
    seeds: &[Seed],
    property: impl Fn(&[u8]) -> bool + RefUnwindSafe,
) {
    if let Some(asked) = guided::asked() {
        return asked.explore(name, seeds, property);
    }
    assert!(seeds.iter().any(Seed::is_accepted), "{name}: the corpus has something to edit");
    for seed in seeds {
        let is_accepted = tried(name, &seed.bytes, &property);
        assert_eq!(is_accepted, seed.is_accepted(), "{name}: {}", seed.name);
    }
    let mut num_accepted = 0;
    for number in 0..NUM_EDITS {
        let input = edited(seeds, &chosen(number));
        num_accepted += u64::from(tried(name, &input, &property));
    }
    // Edits that all sides refuse at once, or that change nothing, test nothing.
    assert!(
        (NUM_EDITS / 1000..NUM_EDITS * 99 / 100).contains(&num_accepted),
        "{name}: {num_accepted} accepted"
    );
    explore(name, seeds, &property);
}

/// The edits of a seed.
fn chosen(seed: u64) -> Edits {
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = (0..DECIDING_WORDS).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let options = Options::default().with_max_len(bytes.len());
    let mut driver = ByteSliceDriver::new(&bytes, &options);
    Edits::generate(&mut driver).unwrap_or_default()
}

/// Tries an input; one that fails is written to a file that the message names.
#[track_caller]
fn tried(name: &str, input: &[u8], property: &(impl Fn(&[u8]) -> bool + RefUnwindSafe)) -> bool {
    catch_unwind(AssertUnwindSafe(|| property(input))).unwrap_or_else(|panic| {
        let path = std::env::temp_dir().join(format!("fuzz-{name}-{}", blake3::hash(input).to_hex()));
        std::fs::write(&path, input).expect("the input that failed can be written");
        eprintln!("{name}: an input fails, in {}; add it to the corpus when it is mended", path.display());
        resume_unwind(panic)
    })
}

/// Edits from new seeds, by bolero; a failure names the seed that gives it again
/// (`BOLERO_RANDOM_SEED`).
fn explore(name: &str, seeds: &[Seed], property: &(impl Fn(&[u8]) -> bool + RefUnwindSafe)) {
    let Ok(text) = std::env::var(SECONDS) else { return };
    let seconds: u64 = text.parse().expect("FUZZ_SECONDS is a number of seconds");
    let name_of_target = name.to_owned();
    check!(name = format!("new_{name}"))
        .with_iterations(usize::MAX)
        .with_test_time(Duration::from_secs(seconds))
        .with_type::<Edits>()
        .for_each(|edits: &Edits| {
            let _ = tried(&name_of_target, &edited(seeds, edits), property);
        });
}
