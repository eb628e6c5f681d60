//! Losses that no training gives.

use schemas::body::{Body, Credit, StepDet};
use schemas::contract::{Architecture, Contract};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL220`.
    PlausibleLosses,
    {
        code: "GL220",
        name: "plausible-losses",
        what: "Warns of a first loss that is far from what a model of these initial values has, which hardly knows more than a \
               uniform guess; of a loss that jumps by more than a nat and 25 times as far as losses of this run moved before; and of \
               16 losses in a row that are, bit for bit, those of earlier steps. Updates at rate 0 and skipped ones are left out.",
        why: "Nobody can recompute a loss without training. But real losses begin where initial values put them, move on the \
              run's own scale and do not repeat; copied or invented ones do.",
        remedy: "Ask for the run to be probed (`trainer probe`). Of a jump, look at the data of its step. A warning changes no verdict.",
        reference: "schemas::body::Credit; docs/FORMAT.md, \"Initial values\"",
        gate: Route::RejectNumerics,
    }
);

/// Nats that a first loss may be off whatever the initial values: of a batch
/// whose bytes are not uniform, it is a small part of a nat.
const FIRST_LOSS_SLACK: f64 = 0.5;
/// Steps whose losses are remembered.
const NUM_REMEMBERED: u64 = 1024;
/// Repeated losses in a row that no chance gives.
const MIN_REPEATS: u32 = 16;
/// Changes that make up the run's own scale before it judges.
const MIN_CHANGES: u32 = 32;
/// Weight of the newest change in that scale.
const NEWEST: f64 = 1.0 / 32.0;
/// A jump is this many times the scale, and more than this many nats.
const JUMP_FACTOR: f64 = 25.0;
const JUMP_NATS: f64 = 1.0;

/// The last step of each loss, as far as there is room: one place for each value
/// of a hash, so that a step costs no more than a look. What another loss took
/// the place of is forgotten, which hides a part of a row at most.
struct Remembered {
    /// Bits and step, or [`NOTHING`].
    places: Vec<(u64, u64)>,
}

/// A place that is free: no step has this number.
const NOTHING: (u64, u64) = (0, u64::MAX);

/// Places, as a power of two: twice as many as losses, in half of a processor's
/// first cache.
const PLACES_BITS: u32 = 11;
/// Spreads bits over the places (Knuth, "Sorting and Searching", section 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Remembered {
    fn new() -> Self {
        Self { places: vec![NOTHING; 1 << PLACES_BITS] }
    }

    /// Remembers a loss; gives the step that had the same bits before, if it is
    /// not long ago.
    fn replace(&mut self, step: u64, bits: u64) -> Option<u64> {
        let at = bits.wrapping_mul(SPREAD) >> (u64::BITS - PLACES_BITS);
        let place = self.places.get_mut(usize::try_from(at).ok()?)?;
        let (other, known) = std::mem::replace(place, (bits, step));
        let is_same = other == bits && known != NOTHING.1 && step.saturating_sub(known) <= NUM_REMEMBERED;
        is_same.then_some(known)
    }

    /// Forgets what is executed again.
    fn rewind(&mut self, step: u64) {
        self.places.iter_mut().filter(|(_, known)| *known > step).for_each(|place| *place = NOTHING);
    }
}

/// A row of losses that earlier steps had too.
#[derive(Default)]
struct Row {
    is_told: bool,
    lag: u64,
    length: u32,
}

struct Losses<'a> {
    contract: &'a Contract,
    num_changes: u32,
    num_steps: u64,
    previous: Option<f64>,
    remembered: Remembered,
    row: Row,
    /// Mean absolute change, the newest weighing most.
    scale: f64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Losses {
        contract: &frozen.contract,
        num_changes: 0,
        num_steps: 0,
        previous: None,
        remembered: Remembered::new(),
        row: Row::default(),
        scale: 0.0,
    })
}

/// What a model of these initial values has about, and how far from it a loss
/// may be. Logits are products of a normalised state with rows of the head,
/// whose elements have the deviation `std`; a head that is the embedding adds
/// the product of the embedding with itself.
fn first_loss(contract: &Contract) -> (f64, f64) {
    let Architecture::LlamaDecoder(shape) = &contract.architecture;
    let (hidden, std) = (f64::from(shape.hidden_size), shape.initializer_std);
    let own = if shape.tied_embeddings { hidden * std } else { 0.0 };
    (f64::from(shape.vocab_size).ln(), FIRST_LOSS_SLACK + own + hidden * std * std)
}

impl Losses<'_> {
    fn first(&self, at: At, loss: f64, sink: &mut Sink) {
        if self.contract.initialization.is_some() {
            return;
        }
        let (expected, slack) = first_loss(self.contract);
        if (loss - expected).abs() > slack {
            let message = "the first loss is not that of a model of these initial values";
            sink.warning(at, message, format!("{expected:.3} to within {slack:.3}"), loss);
        }
    }

    fn jump(&mut self, at: At, loss: f64, sink: &mut Sink) {
        let Some(previous) = self.previous.replace(loss) else { return };
        let change = (loss - previous).abs();
        if self.num_changes >= MIN_CHANGES && change > JUMP_NATS && change > JUMP_FACTOR * self.scale {
            let message = "the loss jumps on a scale that is not this run's";
            let expected = format!("within {:.3} of {previous}", JUMP_NATS.max(JUMP_FACTOR * self.scale));
            sink.warning(at, message, expected, loss);
        }
        let weight =
            if self.num_changes < MIN_CHANGES { 1.0 / f64::from(self.num_changes + 1) } else { NEWEST };
        self.scale += weight * (change - self.scale);
        self.num_changes = self.num_changes.saturating_add(1);
    }

    fn repeat(&mut self, at: At, step: u64, loss: f64, sink: &mut Sink) {
        let bits = loss.to_bits();
        let lag = self.remembered.replace(step, bits).map(|earlier| step.saturating_sub(earlier));
        self.row = match lag {
            Some(lag) if lag > 0 && lag == self.row.lag => Row { length: self.row.length + 1, ..self.row },
            Some(lag) if lag > 0 => Row { lag, length: 1, is_told: self.row.is_told },
            _ => Row { is_told: self.row.is_told, ..Row::default() },
        };
        if self.row.length >= MIN_REPEATS && !self.row.is_told {
            self.row.is_told = true;
            let message = format!(
                "{MIN_REPEATS} losses in a row are, bit for bit, those of {} steps before",
                self.row.lag
            );
            sink.warning(at, message, "losses of their own", loss);
        }
    }

    fn step(&mut self, entry: &Entry, det: &StepDet, sink: &mut Sink) {
        self.num_steps += 1;
        let Credit::Backpropagation { loss, .. } = &det.credit else { return };
        let (loss, step) = (loss.0, entry.header.step.unwrap_or(0));
        if !loss.is_finite() {
            self.previous = None;
            return;
        }
        let at = || At::entry(entry.index, "/body/det/credit/loss");
        if step == 1 {
            self.first(at(), loss, sink);
        }
        self.jump(at(), loss, sink);
        let is_skipped = det.overflow.as_ref().is_some_and(|overflow| overflow.skipped);
        let is_still = det.updates.iter().all(|update| update.learning_rate.0 == 0.0);
        if is_skipped || is_still {
            self.row = Row { is_told: self.row.is_told, ..Row::default() };
        } else {
            self.repeat(at(), step, loss, sink);
        }
    }
}

impl Check for Losses<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.remembered.rewind(halves.det.from_step);
                self.previous = None;
                self.row = Row { is_told: self.row.is_told, ..Row::default() };
            }
            Body::Step(halves) => self.step(entry, &halves.det, sink),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_steps)
    }
}
