//! The table of adversary classes: what each does, with which keys, and the
//! least evidence that shows it.
//!
//! A line changes together with its attack in `tests/system/adversaries/`; a
//! line that only says what one would like to be true fails there.

use schemas::trust::ShownBy::{Alone, ExternalHead, NotAtAll, Witness};

use super::{AdversaryClass, Way};

/// What most ways of the table are: to be completed by the rest.
const WAY: Way = Way {
    name: "",
    what: "",
    holds: NO_KEY,
    shown_by: Alone,
    keys_show_it: false,
    is_warning: false,
    rules: &[],
    why: "",
};

const NO_KEY: &str = "no key";
const TRAINER: &str = "the trainer's key";
const OWNER_AND_TRAINER: &str = "the owner's and the trainer's key";

/// Every class, in the order of the issue that asked for them.
pub const CLASSES: &[AdversaryClass] = &[
    AdversaryClass {
        name: "byte-edits",
        what: "Bytes of the ledger's file, or of a file that it names, are changed in place",
        ways: &[
            Way {
                name: "entry",
                what: "A digit of an entry is changed in the database file",
                rules: &["GL005", "GL008"],
                why: "Leaf hash and every later root commit to each byte",
                ..WAY
            },
            Way {
                name: "head",
                what: "A byte of a signed head is changed in the database file",
                rules: &["GL008"],
                why: "The signature covers the whole note",
                ..WAY
            },
            Way {
                name: "frozen-file",
                what: "A byte of a data shard is changed after the freeze",
                rules: &["GL108"],
                why: "The frozen manifest holds every shard's digest",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "sql-edits",
        what: "The triggers are dropped and rows changed through SQLite",
        ways: &[
            Way {
                name: "row-updated",
                what: "An entry and its leaf hash are changed to agree, and the triggers put back",
                rules: &["GL008"],
                why: "Signed roots cannot be made again without the trainer's key",
                ..WAY
            },
            Way {
                name: "row-removed",
                what: "A row is deleted, the later ones are numbered anew, and the triggers put back",
                rules: &["GL002", "GL008"],
                why: "Each entry holds its own index, and the roots hold its place",
                ..WAY
            },
            Way {
                name: "triggers-left-off",
                what: "A trigger is dropped and not put back",
                rules: &["GL001"],
                why: "The layout is compared as a whole; triggers are a guard rail and no evidence",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "tail-cut",
        what: "The newest entries are removed down to a signed head, in database and head file alike",
        ways: &[
            Way {
                name: "before-the-end",
                what: "The cut takes the end of the run with it",
                rules: &["GL201"],
                why: "A run without its end is never accepted; that it was cut, and not killed, only a kept head tells",
                ..WAY
            },
            Way {
                name: "after-the-end",
                what: "The cut takes what was recorded after the run had ended, such as a handoff",
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "What is left is a whole run with valid heads",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "tail-rewritten",
        what: "Entries after some point are replaced, and everything behind them is hashed and signed again",
        ways: &[
            Way {
                name: "value-edited",
                what: "A learning rate is changed in an entry",
                holds: TRAINER,
                rules: &["GL401"],
                why: "What the contract determines is derived again, whoever signed it",
                ..WAY
            },
            Way {
                name: "time-edited",
                what: "A duration that the day decided is changed in an entry",
                holds: TRAINER,
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "Nothing else on record determines it",
                ..WAY
            },
            Way {
                name: "executed-again",
                what: "Ledger and checkpoints are put back to an earlier copy and the run goes on from there, so that an attempt that failed was never made",
                holds: "the trainer's key and an earlier copy of the folder",
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "The second history is as honest as the first",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "ledger-replaced",
        what: "Another ledger is put in the place of the one that was shown",
        ways: &[
            Way {
                name: "by-a-stranger",
                what: "Somebody trains under keys of their own and puts the result in its place",
                holds: "keys of their own",
                shown_by: ExternalHead,
                keys_show_it: true,
                rules: &["GL009"],
                why: "A ledger brings the keys that it is checked with",
                ..WAY
            },
            Way {
                name: "by-its-makers",
                what: "The same contract is frozen and run again, and the first run is never mentioned",
                holds: OWNER_AND_TRAINER,
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "One ledger does not show how many others there were; a campaign counts those that it was told of",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "clock-moved",
        what: "The recording machine's clock is set to another time",
        ways: &[
            Way {
                name: "times-fall",
                what: "Times of a rewritten entry are before those of earlier ones",
                holds: TRAINER,
                is_warning: true,
                rules: &["GL012"],
                why: "Order is evidenced by the tree; a clock that is set back is no reason to reject a run",
                ..WAY
            },
            Way {
                name: "whole-run-dated-back",
                what: "The clock stands in the past for the whole of the run",
                holds: "the recording machine",
                shown_by: Witness,
                is_warning: true,
                rules: &["GL016"],
                why: "No entry knows another clock; a witness that the contract names dates each head by its own",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "two-ledgers",
        what: "One freeze has two ledgers, with one run identifier",
        ways: &[Way {
            name: "one-freeze-run-twice",
            what: "The frozen ledger is copied, run twice, and each reader is shown another one, with its heads",
            holds: TRAINER,
            shown_by: Witness,
            rules: &["GL014"],
            why: "Each is whole, and agrees with every head that its reader was given; a witness that the contract names cosigns one of them",
            ..WAY
        }],
    },
    AdversaryClass {
        name: "checkpoint-swapped",
        what: "The candidate's files are replaced after the handoff",
        ways: &[
            Way {
                name: "files",
                what: "The model of another step lies in the candidate's folder",
                rules: &["GL110"],
                why: "Entries and handoff hold its digest, and the audit and the evaluator read the file",
                ..WAY
            },
            Way {
                name: "files-and-record",
                what: "The candidate's digest is changed in files and entries, and all of it signed again; the handoff is left as it is",
                holds: TRAINER,
                rules: &["GL112"],
                why: "The handoff beside the ledger and the record's entry of it say what it saw, and these entries are others",
                ..WAY
            },
            Way {
                name: "files-record-and-handoff",
                what: "The same, and the handoff goes with its entry, the report and the evaluator's numbers",
                holds: TRAINER,
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "What is left is a whole run with valid heads; whoever qualifies has the handoff that they were given, and it names another model",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "foreign-candidate",
        what: "What is presented as the run's candidate was made by another run",
        ways: &[
            Way {
                name: "files",
                what: "Another run's model lies in the candidate's folder",
                rules: &["GL110"],
                why: "Its digest is another one",
                ..WAY
            },
            Way {
                name: "handoff",
                what: "The handoff and the report of another run lie beside the ledger",
                rules: &["GL111", "GL112"],
                why: "Both name their run and their contract",
                ..WAY
            },
            Way {
                name: "recorded-later",
                what: "Another run's model is put into the newest checkpoint with a value that fits it, every digest on record is changed, and all of it signed again",
                holds: TRAINER,
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "The record is consistent; only executing the steps again would contradict it",
                ..WAY
            },
            Way {
                name: "recorded-at-once",
                what: "The same, before the first head over these entries was given to anybody",
                holds: TRAINER,
                shown_by: NotAtAll,
                why: "A trainer that lies from the start signs its own story; whoever executes the contract again can contradict it",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "frozen-again",
        what: "A contract is frozen after outcomes were seen",
        ways: &[
            Way {
                name: "into-the-ledger",
                what: "A second contract, signed by the owner, is appended to the run",
                holds: OWNER_AND_TRAINER,
                rules: &["GL106"],
                why: "There is one freeze, and it is the first entry",
                ..WAY
            },
            Way {
                name: "as-a-new-run",
                what: "A contract with another end is frozen and run, and presented as the first and only one",
                holds: OWNER_AND_TRAINER,
                shown_by: ExternalHead,
                rules: &["GL009"],
                why: "The freeze has no date but the owner's; a head over the first freeze that somebody kept is of another ledger",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "opened-early",
        what: "The sealed qualification set is opened before, or more often than, the handoff allows",
        ways: &[
            Way {
                name: "on-record",
                what: "The run's own ledger holds an evaluation on the qualification split",
                holds: TRAINER,
                rules: &["GL705"],
                why: "No entry of a run may be about the sealed set",
                ..WAY
            },
            Way {
                name: "in-private",
                what: "Whoever holds the qualifier's identity opens the set on a copy, and throws the copy away",
                holds: "the qualifier's identity",
                shown_by: NotAtAll,
                rules: &["GL704"],
                why: "Reading leaves no trace; the identity has to be kept by somebody else, on another machine",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "evaluator-is-trainer",
        what: "Evaluator and trainer are one",
        ways: &[
            Way {
                name: "one-key",
                what: "The contract names the trainer's key as the qualifier's",
                holds: OWNER_AND_TRAINER,
                rules: &["GL703"],
                why: "Keys are compared",
                ..WAY
            },
            Way {
                name: "two-keys-of-one-hand",
                what: "Both keys are in one hand, and were made on one machine",
                holds: "every key",
                shown_by: NotAtAll,
                rules: &["GL704"],
                why: "A note says that independence is not established; that hosts differ is only declared",
                ..WAY
            },
            Way {
                name: "values-invented",
                what: "Values of `val` are invented, in agreement with each other wherever they stand, so that another candidate is selected; the evaluator's numbers are left as they are",
                holds: TRAINER,
                rules: &["GL508"],
                why: "The evaluator computed them again from the weights of every candidate",
                ..WAY
            },
            Way {
                name: "values-invented-and-unchecked",
                what: "The same, and the evaluator's numbers are removed, or were never made",
                holds: TRAINER,
                shown_by: NotAtAll,
                why: "A file that is missing contradicts nothing; report and handoff say on whose numbers the selection rests, `ledger handoff` refuses the trainer's own unless it is told otherwise, and anybody can run `evaluator val` again",
                ..WAY
            },
        ],
    },
    AdversaryClass {
        name: "path-outside",
        what: "A path of the record leads out of the run's folder",
        ways: &[
            Way {
                name: "recorded",
                what: "An entry names a checkpoint's folder with `..`, and all of it is signed again",
                holds: TRAINER,
                rules: &["GL110"],
                why: "Paths are read below the ledger's folder or not at all",
                ..WAY
            },
            Way {
                name: "link",
                what: "A checkpoint's folder is replaced by a link to a copy elsewhere",
                rules: &["GL110"],
                why: "Links are not followed, even to the right bytes",
                ..WAY
            },
        ],
    },
];
