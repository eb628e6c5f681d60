//! The protocol's twelve invariants and twenty failure modes, in our own words
//! and its order, with the rules that guard each.
//!
//! A failure mode that can show only across runs is guarded by rules of a
//! campaign's ledger (`GC...`), which have a catalogue of their own; the rules
//! of a run that are named beside them see to it that each run says what the
//! campaign compares.
//!
//! The lists are written by hand, and which rule guards what is a judgement. What
//! holds them to the rules is one false record each, in which the invariant is
//! broken or the failure there: a rule of the list has to catch it.

use serde::Serialize;

/// Which of the protocol's two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConcernKind {
    /// A condition under which the record of a run is admitted.
    Invariant,
    /// A way in which a record looks right and is not.
    FailureMode,
}

/// An invariant or a failure mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Concern {
    /// Rules over a campaign's ledger.
    pub campaign: &'static [&'static str],
    /// A false run or campaign in which it does not hold, by its name in the
    /// tables of fixtures, which say what catches it.
    pub example: &'static str,
    /// Which list.
    pub kind: ConcernKind,
    /// Its place in the list, from 1.
    pub number: u32,
    /// Rules over a run's ledger.
    pub rules: &'static [&'static str],
    /// What it says.
    pub text: &'static str,
}

impl Concern {
    /// `invariant 3` or `failure mode 14`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            ConcernKind::Invariant => format!("invariant {}", self.number),
            ConcernKind::FailureMode => format!("failure mode {}", self.number),
        }
    }

    /// Whether it shows only where several runs are compared: then no rule of one
    /// run guards it, and a campaign's has to. These are one label for several methods,
    /// and the protocol's last four.
    #[must_use]
    pub fn is_across_runs(&self) -> bool {
        self.kind == ConcernKind::FailureMode && ACROSS_RUNS.contains(&self.number)
    }

    /// Codes of the rules that guard it, those of a campaign last.
    pub fn codes(&self) -> impl Iterator<Item = &'static str> {
        self.rules.iter().chain(self.campaign).copied()
    }
}

/// Numbers of the failure modes that only a campaign shows: two methods that have
/// one label, and what was done for one arm and not for another, or at one scale
/// and not at another.
const ACROSS_RUNS: [u32; 5] = [15, 17, 18, 19, 20];

const fn invariant(
    number: u32,
    text: &'static str,
    example: &'static str,
    rules: &'static [&'static str],
    campaign: &'static [&'static str],
) -> Concern {
    Concern { campaign, example, kind: ConcernKind::Invariant, number, rules, text }
}

const fn failure_mode(
    number: u32,
    text: &'static str,
    example: &'static str,
    rules: &'static [&'static str],
    campaign: &'static [&'static str],
) -> Concern {
    Concern { campaign, example, kind: ConcernKind::FailureMode, number, rules, text }
}

/// Both lists.
pub static CONCERNS: &[Concern] = &[
    invariant(
        1,
        "What decides a run is frozen and signed before anybody can look at an outcome.",
        "a contract that its owner did not sign",
        &[
            "GL001", "GL002", "GL003", "GL004", "GL005", "GL006", "GL007", "GL008", "GL009", "GL010",
            "GL011", "GL012", "GL015", "GL016", "GL101", "GL102", "GL103", "GL104", "GL105", "GL106",
            "GL107", "GL108", "GL201", "GL209", "GL223", "GL308", "GL702",
        ],
        &["GC101", "GC102", "GC103", "GC104", "GC105", "GC106", "GC107", "GC108", "GC110"],
    ),
    invariant(
        2,
        "Each topology and each numerical policy that was executed has an exact identity.",
        "a segment of another identity",
        &["GL206", "GL207", "GL208", "GL213", "GL214", "GL215", "GL222", "GL405", "GL630", "GL706"],
        &["GC114"],
    ),
    invariant(
        3,
        "An optimizer policy says which parameters it moves and how: groups, fallback, parameterization, state, decay, clipping, \
         schedule, approximation and distribution, and not only a family's name.",
        "a group that was left out",
        &["GL401", "GL402", "GL403", "GL406", "GL407", "GL411", "GL412", "GL413", "GL414", "GL415", "GL416"],
        &["GC116", "GC117"],
    ),
    invariant(
        4,
        "The global batch is microbatch times accumulation times workers.",
        "arithmetic that does not reconcile",
        &["GL214", "GL222", "GL301", "GL305"],
        &[],
    ),
    invariant(
        5,
        "Which example was consumed, when and how often, can be reconstructed across retries and resumes.",
        "a rewound cursor after a crash",
        &["GL204", "GL211", "GL302", "GL303", "GL304", "GL305", "GL306", "GL307", "GL310", "GL632"],
        &[],
    ),
    invariant(
        6,
        "The inventory of state that a run declares is all of its state, what its architecture adds included.",
        "a required class that is absent",
        &["GL603", "GL604", "GL605", "GL611", "GL613", "GL645", "GL647"],
        &[],
    ),
    invariant(
        7,
        "The shards of a checkpoint are of one logical step and of one commit that was completed.",
        "a class of another step",
        &["GL110", "GL601", "GL602", "GL604", "GL606", "GL607", "GL608", "GL612", "GL614", "GL632", "GL649"],
        &[],
    ),
    invariant(
        8,
        "A resume claims a class of equivalence, with its tolerance or its test, before it is made.",
        "qualified in another class than the contract's",
        &["GL203", "GL205", "GL620", "GL621", "GL622", "GL623", "GL648"],
        &[],
    ),
    invariant(
        9,
        "What was attempted, failed, interrupted, recovered, completed, selected, qualified and released is counted apart.",
        "an attempt that is not counted",
        &[
            "GL202", "GL209", "GL210", "GL211", "GL212", "GL216", "GL217", "GL230", "GL708", "GL709",
            "GL710", "GL711",
        ],
        &["GC109", "GC111", "GC112"],
    ),
    invariant(
        10,
        "Failed attempts, rejected candidates, the best and the last checkpoint are kept for as long as was declared.",
        "a candidate's model that is let go",
        &["GL010", "GL218", "GL506", "GL610", "GL649", "GL650", "GL701"],
        &["GC109", "GC112"],
    ),
    invariant(
        11,
        "The qualification set, and the evaluator who opens it, select nothing.",
        "an evaluation of the sealed set",
        &["GL109", "GL507", "GL508", "GL509", "GL703", "GL704", "GL705"],
        &["GC120"],
    ),
    invariant(
        12,
        "Training gives nobody an authority to act, to support, to release or to publish.",
        "no non-authority",
        &["GL013", "GL112", "GL511", "GL701", "GL702"],
        &[],
    ),
    failure_mode(
        1,
        "Identity drift: code, data, objective, topology or numerics change under one run's name.",
        "another binary",
        &["GL103", "GL104", "GL106", "GL108", "GL206", "GL207", "GL208", "GL304", "GL307", "GL646"],
        &["GC113", "GC114"],
    ),
    failure_mode(
        2,
        "Silent replay or skip of data: a restart moves the cursor, and nobody counts what that repeats or omits.",
        "a skipped position",
        &["GL204", "GL302", "GL303", "GL304", "GL306", "GL607"],
        &[],
    ),
    failure_mode(
        3,
        "Torn checkpoint: files of different steps, or a save that never ended.",
        "a checkpoint without its weights",
        &["GL110", "GL602", "GL604", "GL605", "GL606", "GL612"],
        &[],
    ),
    failure_mode(
        4,
        "Amnesia: the weights come back, and optimizer, schedule, scaler, generators, sampler, topology or the architecture's own \
         state begin again.",
        "an optimizer that was reset",
        &[
            "GL203", "GL205", "GL401", "GL410", "GL415", "GL416", "GL603", "GL607", "GL611", "GL620",
            "GL621", "GL622", "GL630", "GL633", "GL642", "GL643", "GL644",
        ],
        &[],
    ),
    failure_mode(
        5,
        "Topology drift: another mesh or another plan of collectives is called equivalent.",
        "a change of workers under a bitwise claim",
        &["GL207", "GL208", "GL214", "GL215", "GL222", "GL301", "GL648"],
        &["GC114"],
    ),
    failure_mode(
        6,
        "Laundered numerics: another precision arrives inside of a recovery and is not called an intervention.",
        "masters that were rounded to bfloat16",
        &["GL207", "GL222", "GL404", "GL405", "GL630", "GL631", "GL640", "GL641"],
        &["GC114"],
    ),
    failure_mode(
        7,
        "Stale or doubled update: a gradient is applied late, or twice, and no policy allows it.",
        "the gradients of an earlier update",
        &["GL204", "GL214", "GL215", "GL220", "GL415", "GL643"],
        &[],
    ),
    failure_mode(
        8,
        "Surgery on a loss spike: bad batches or segments are left out, and neither the intervention nor what else was tried is told.",
        "a missing step",
        &["GL204", "GL217", "GL220", "GL302", "GL306", "GL404", "GL631", "GL707", "GL708"],
        &["GC112"],
    ),
    failure_mode(
        9,
        "Cherry-picked checkpoint: what is later presented as held out chose it.",
        "a selection of the worse candidate",
        &[
            "GL109", "GL310", "GL501", "GL502", "GL503", "GL504", "GL505", "GL507", "GL508", "GL509",
            "GL512", "GL705",
        ],
        &["GC120"],
    ),
    failure_mode(
        10,
        "Censored failures: the cost is that of the attempt, or of the run, that finished.",
        "the vanished attempt left out of the cost",
        &["GL014", "GL015", "GL202", "GL210", "GL211", "GL212", "GL216", "GL221", "GL709"],
        &["GC109", "GC111", "GC112", "GC121"],
    ),
    failure_mode(
        11,
        "Peak throughput in place of time to quality and of the whole cost.",
        "repeated steps left out of the cost",
        &["GL212", "GL219", "GL221", "GL510"],
        &["GC108", "GC121", "GC123"],
    ),
    failure_mode(
        12,
        "Capacity in place of capability: that a larger model fits is taken for its having learnt.",
        "a missed target that is called met",
        &["GL510", "GL512", "GL701", "GL706"],
        &["GC108", "GC123"],
    ),
    failure_mode(
        13,
        "A trainer that certifies itself, and calls what depends on it independent.",
        "a report that the trainer signed",
        &["GL007", "GL011", "GL014", "GL102", "GL111", "GL112", "GL508", "GL703", "GL704"],
        &["GC111", "GC125", "GC126"],
    ),
    failure_mode(
        14,
        "Theatre of completeness: a schema passes, and the real state or the real data lie outside of it.",
        "a changed data shard",
        &[
            "GL110", "GL304", "GL307", "GL408", "GL409", "GL605", "GL607", "GL613", "GL620", "GL621",
            "GL640", "GL647",
        ],
        &[],
    ),
    failure_mode(
        15,
        "One label for different methods: groups, decay, epsilon, schedule, precision or approximation differ under one name.",
        "one label for two policies",
        &["GL402", "GL403", "GL406", "GL412", "GL413", "GL415", "GL416"],
        &["GC116"],
    ),
    failure_mode(
        16,
        "Concealed fallback: another optimizer moves embeddings, vectors or unstable parts, and the first gets the credit.",
        "a fallback that nothing executes",
        &["GL402", "GL406", "GL407", "GL409", "GL412", "GL416"],
        &["GC117"],
    ),
    failure_mode(
        17,
        "Sabotaged baseline: the proposed method was tuned, the one beside it was not.",
        "a baseline that was never tuned",
        &["GL406", "GL412", "GL709"],
        &["GC115"],
    ),
    failure_mode(
        18,
        "False negative: a naive, broken, under-tuned or starved arm is presented as the failure of a family.",
        "no difference, without a positive control",
        &["GL209", "GL210", "GL510", "GL701"],
        &["GC118", "GC119", "GC122"],
    ),
    failure_mode(
        19,
        "Laundered steps: fewer updates stand for fewer tokens, less time, less energy, less cost.",
        "fewer tokens for more time",
        &["GL211", "GL212", "GL305", "GL306", "GL709"],
        &["GC123"],
    ),
    failure_mode(
        20,
        "Laundered transfer: a result at one width, batch or architecture is described as one of scale.",
        "a claim along an axis on which its runs are at one point",
        &["GL406", "GL701", "GL709"],
        &["GC124"],
    ),
];
