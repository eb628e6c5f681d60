//! What survives, and why nobody who sees the record could know.
//!
//! Each is listed by the entries that have it (kind, and `first` or `middle`),
//! the pointer and the operation. One that turns out to be killed is a failure:
//! then the reason is wrong. Nothing is listed that a rule could derive.

/// The clock of one host.
const CLOCK: &str = "a clock is evidence of order alone: a time that does not go back may be any";
/// What a process measured.
const DAY: &str =
    "what the day decided: no second source says how long it took, how much memory or which host it was";
/// Texts.
const WORDS: &str =
    "words for people: nothing is derived from them, and what they explain is beside them in fields";
/// Results of training.
const COMPUTED: &str = "what the update computed, here by its last bit and in the suite by the name of this module by a tenth: only executing it again tells, which a probe does up to its checkpoint";
/// A stage that is left out.
const UNSAID: &str = "it claims less than the probes on record show: the audit warns, and routes to no handoff where the contract asks for the stage";
/// Threads.
const THREADS: &str = "no bits depend on the number of threads, the contract binds none, and there is no second attempt to compare with";

/// Entries beside the run.
const ASIDE: &str = "what stands beside the run and decides nothing in it: the contract asks for none, no rule derives one, and what it says has no second source";

/// When a retirement was written.
const PERMITTED: &str = "retiring is a permission and no duty: where between the save that let a state go and the next one it was \
                         written leaves nothing else than it would have left a step earlier";

/// A change that survives.
struct Unknowable {
    /// Kind and which entry; empty for every one.
    entry: &'static str,
    /// Operation; empty for every one.
    operation: &'static str,
    /// Pointer; `*` at its end stands for any rest.
    pointer: &'static str,
    /// Why nobody could know.
    reason: &'static str,
}

const fn one(
    entry: &'static str,
    pointer: &'static str,
    operation: &'static str,
    reason: &'static str,
) -> Unknowable {
    Unknowable { entry, operation, pointer, reason }
}

const LIST: &[Unknowable] = &[
    one("", "/time_us", "perturb", CLOCK),
    one("run.start first", "/body/obs/tool", "perturb", WORDS),
    one("attempt.start first", "/body/obs/cpu", "perturb", WORDS),
    one("attempt.start first", "/body/obs/host", "perturb", DAY),
    one("attempt.start first", "/body/obs/process", "perturb", DAY),
    one("attempt.start first", "/body/obs/total_memory_bytes", "perturb", DAY),
    one("attempt.start first", "/body/obs/plan/num_threads", "perturb", THREADS),
    one("eval first", "/body/obs/duration_us", "perturb", DAY),
    one("checkpoint.requested first", "/body/obs/duration_us", "perturb", DAY),
    one("checkpoint.staged first", "/body/obs/duration_us", "perturb", DAY),
    one("checkpoint.durably_committed first", "/body/obs/duration_us", "perturb", DAY),
    one("checkpoint.validated first", "/body/obs/duration_us", "perturb", DAY),
    one("step first", "/body/det/credit/backpropagation/gradient_norm", "perturb", COMPUTED),
    one("", "/body/det/credit/backpropagation/loss", "perturb", COMPUTED),
    one("", "/body/det/updates/0/parameter_norm", "perturb", COMPUTED),
    one("", "/body/det/updates/0/update_norm", "perturb", COMPUTED),
    one("", "/body/obs/duration_us", "perturb", DAY),
    one("", "/body/obs/duration_us~recording_us", "reorder", DAY),
    one("", "/body/obs/recording_us", "perturb", DAY),
    one("", "/body/obs/resident_bytes", "perturb", DAY),
    one("attempt.end first", "/body/obs/reason", "perturb", WORDS),
    one("run.end first", "/body/det/reason", "perturb", WORDS),
    one("fault.observed first", "/body/obs/description", "perturb", WORDS),
    one("cost first", "/body/obs/description", "perturb", WORDS),
    one("intervention first", "/body/det/action", "perturb", WORDS),
    one("intervention first", "/body/obs/reason", "perturb", WORDS),
    one("checkpoint.failed first", "/body/obs/reason", "perturb", WORDS),
    one("checkpoint.quarantined first", "/body/obs/reason", "perturb", WORDS),
    one("probe.start first", "/body/obs/plan/num_threads", "perturb", THREADS),
    one("checkpoint.resume_qualified first", "", "delete", UNSAID),
    one("anomaly first", "/body/obs/description", "perturb", WORDS),
    one("diagnostic first", "", "delete", ASIDE),
    one("diagnostic first", "", "duplicate", ASIDE),
    one("diagnostic first", "", "reorder", ASIDE),
    one("diagnostic first", "/attempt", "delete", ASIDE),
    one("diagnostic first", "/body/det/name", "perturb", ASIDE),
    one("diagnostic first", "/body/det/values/mean", "perturb", ASIDE),
    one("diagnostic first", "/body/det/values/mean", "retype", ASIDE),
    one("diagnostic first", "/body/det/values/mean", "delete", ASIDE),
    one("diagnostic first", "/step", "perturb", ASIDE),
    one("diagnostic first", "/step", "delete", ASIDE),
    one("diagnostic first", "/step~time_us", "reorder", ASIDE),
    one("heartbeat first", "", "delete", ASIDE),
    one("heartbeat first", "", "duplicate", ASIDE),
    one("heartbeat first", "", "reorder", ASIDE),
    one("heartbeat first", "/body/det/phase", "perturb", ASIDE),
    one("heartbeat first", "/step", "perturb", ASIDE),
    one("heartbeat first", "/step", "delete", ASIDE),
    one("heartbeat first", "/step~time_us", "reorder", ASIDE),
    one("checkpoint.retired first", "", "reorder", PERMITTED),
    one("amendment first", "", "delete", ASIDE),
    one("amendment first", "", "duplicate", ASIDE),
    one("amendment first", "/body/det/statement", "perturb", ASIDE),
    one("amendment first", "/segment", "perturb", ASIDE),
    one("amendment first", "/step", "perturb", ASIDE),
    one("", "/body/obs/shares/0/duration_us", "perturb", DAY),
    one("", "/body/obs/shares/0/gradients", "perturb", COMPUTED),
];

/// Entry, pointer and operation that a line of [`LIST`] for every entry is not
/// about: the last entry of an attempt that vanished ends its wall time.
const KNOWN: &[(&str, &str, &str)] = &[("fault.injected first", "/time_us", "perturb")];

/// Why a change survives; `None` where it has to be killed.
#[must_use]
pub fn reason(entry: &str, pointer: &str, operation: &str) -> Option<&'static str> {
    if KNOWN.contains(&(entry, pointer, operation)) {
        return None;
    }
    let fits = |wanted: &str, name: &str| wanted.is_empty() || wanted == name;
    let found = LIST.iter().find(|one| {
        let is_there = match one.pointer.strip_suffix('*') {
            Some(start) => pointer.starts_with(start),
            None => pointer == one.pointer,
        };
        is_there && fits(one.entry, entry) && fits(one.operation, operation)
    });
    found.map(|one| one.reason)
}
