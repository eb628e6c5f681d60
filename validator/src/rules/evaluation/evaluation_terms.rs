//! Evaluation, selection and target can decide something.

use schemas::contract::{CandidateFamily, Contract, Direction, Metric};
use schemas::data::Split;
use schemas::report::Route;

use crate::frozen::{ExampleTable, Frozen};
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL512`.
    EvaluationTerms,
    {
        code: "GL512",
        name: "evaluation-terms",
        what: "Every stream has a name, an interval and examples that its split has, and calls fewer bits per byte better; the family \
               of candidates is one whose checkpoints are evaluated; and the quality target says where it comes from and lies \
               where a model that knows nothing is not.",
        why: "A target that anything reaches proves no competence, and a direction that is turned round selects the worst.",
        remedy: "Correct `evaluation`, `selection` or `quality_target`, and freeze again.",
        reference: "docs/CONTRACT.md, \"EvaluationStream\", \"SelectionRule\" and \"QualityTarget\"",
        gate: Route::RejectSelectionLeakage,
    }
);

/// Bits per byte of a model that knows nothing.
const UNIFORM_BITS_PER_BYTE: f64 = 8.0;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        streams(frozen, &mut terms);
        family(&frozen.contract, &mut terms);
        target(&frozen.contract, &mut terms);
        terms.outcome()
    })
}

fn streams(frozen: &Frozen, terms: &mut Terms<'_>) {
    let streams = &frozen.contract.evaluation.streams;
    terms.require(!streams.is_empty(), "/evaluation/streams", "nothing is evaluated", "a stream", "none");
    for (index, stream) in streams.iter().enumerate() {
        let at = |field: &str| format!("/evaluation/streams/{index}/{field}");
        terms.text(&stream.name, &at("name"));
        terms.count(stream.every_steps, &at("every_steps"));
        let Metric::BitsPerByte = stream.metric;
        let is_right = stream.direction == Direction::Minimize;
        let message = "fewer bits per byte are better";
        terms.require(is_right, &at("direction"), message, "minimize", format!("{:?}", stream.direction));
        let table = match stream.split {
            Split::Train => frozen.train_examples.as_ref().ok(),
            Split::Val => frozen.val_examples.as_ref().ok(),
            // That it may not be evaluated is for the rule of the sealed set.
            Split::Qualification => None,
        };
        let Some(num_examples) = stream.num_examples else { continue };
        let most = table.map_or(u64::MAX, ExampleTable::num_examples);
        terms.within(num_examples, 1..=most, &at("num_examples"));
    }
}

/// Whether candidates have values, for which evaluations and checkpoints have to
/// meet.
fn family(contract: &Contract, terms: &mut Terms<'_>) {
    let name = &contract.selection.stream;
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
    let (Some(stream), CandidateFamily::EveryEvaluatedCheckpoint) = (stream, contract.selection.family)
    else {
        return;
    };
    let (evaluated, saved) = (stream.every_steps.max(1), contract.checkpoints.every_steps.max(1));
    let meet = evaluated.is_multiple_of(saved) || saved.is_multiple_of(evaluated);
    let message = "checkpoints and evaluations hardly ever meet";
    let actual = format!("saved every {saved} steps, evaluated every {evaluated}");
    terms.require(meet, "/selection/family", message, "one interval a multiple of the other", actual);
}

fn target(contract: &Contract, terms: &mut Terms<'_>) {
    let Some(target) = &contract.quality_target else { return };
    terms.text(&target.derivation, "/quality_target/derivation");
    let is_quality = target.threshold > 0.0 && target.threshold < UNIFORM_BITS_PER_BYTE;
    let message = "the target is one that a model which knows nothing reaches, or none can";
    let expected = format!("above 0 and below {UNIFORM_BITS_PER_BYTE}");
    terms.require(is_quality, "/quality_target/threshold", message, expected, target.threshold);
}
