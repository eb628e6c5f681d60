//! The contract that `init` starts from, and the comments that explain it.

use serde_json::{Value, json};

use crate::preset::Preset;

/// Most process starts of a run.
const MAX_ATTEMPTS: u32 = 1_000;

/// Name of the evaluation stream.
pub(crate) const STREAM: &str = "val";

/// Files of the folder, relative to the contract.
pub(crate) const DATA_FOLDER: &str = "data";
pub(crate) const CARD: &str = "policy-card.json";
pub(crate) const PARAMETERS: &str = "parameters.json";
pub(crate) const SEALED: &str = "qualification.age";
pub(crate) const CONTRACT: &str = "contract.json";

/// The contract of a preset. What depends on data, keys and trainer is null.
pub(crate) fn contract(preset: Preset, name: &str) -> Value {
    let mut contract = run(preset);
    if let (Value::Object(contract), Value::Object(rest)) = (&mut contract, setting(preset, name)) {
        contract.extend(rest);
    }
    contract
}

/// The blocks that a preset determines.
fn run(preset: Preset) -> Value {
    let values = preset.values();
    let rate = |group: &str| {
        json!({"group": group, "shape": {
            "kind": "warmup_cosine", "floor": values.peak_rate / 10.0, "peak": values.peak_rate,
            "total_steps": values.num_steps, "warmup_steps": values.warmup_steps
        }})
    };
    json!({
        "architecture": {
            "family": "llama_decoder", "context_length": values.context_length, "dropout": values.dropout,
            "head_dim": values.head_dim, "hidden_size": values.hidden_size, "initializer_std": 0.02,
            "intermediate_size": values.intermediate_size, "num_heads": values.num_heads,
            "num_kv_heads": values.num_kv_heads, "num_layers": values.num_layers, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0, "tied_embeddings": true, "vocab_size": 256
        },
        "batch": {
            "accumulation": values.accumulation, "data_parallel": 1,
            "global_examples": values.accumulation * values.microbatch_examples,
            "microbatch_examples": values.microbatch_examples
        },
        "budget": {
            "max_attempts": MAX_ATTEMPTS, "max_steps": values.num_steps, "max_tokens": null,
            "max_wall_s": values.max_wall_s
        },
        "checkpoints": {
            "candidate_stage": "validated", "every_steps": values.checkpoint_every_steps, "keep": {"kind": "all"},
            "mid_accumulation": "round_to_boundary", "mode": "synchronous", "store": "checkpoints"
        },
        "evaluation": {"streams": [{
            "direction": "minimize", "every_steps": values.eval_every_steps, "metric": "bits_per_byte",
            "name": STREAM, "num_examples": values.eval_num_examples, "split": "val", "view": "current"
        }]},
        "expected": {"communication_bytes_per_step": 0, "memory_bytes": values.memory_bytes},
        "floors": {"free_disk_bytes": values.floor_bytes, "free_memory_bytes": values.floor_bytes},
        "schedule": [rate("matrices"), rate("embeddings"), rate("vectors")],
        "stopping": {"kind": "at_step", "step": values.num_steps},
    })
}

/// The blocks that are the same for every preset.
fn setting(preset: Preset, name: &str) -> Value {
    let binding = |path: &str| json!({"digest": null, "num_bytes": null, "path": path});
    let data = |file: &str| binding(&format!("{DATA_FOLDER}/{file}"));
    json!({
        "code": null,
        "credit": {"rule": "backpropagation"},
        "data": {
            "admitted_license_classes": ["green"], "expires": null, "manifest": data(corpus::build::MANIFEST_NAME),
            "terms": "For this run, on this machine.",
            "train_examples": data(corpus::build::TRAIN_EXAMPLES_NAME),
            "val_examples": data(corpus::build::VAL_EXAMPLES_NAME)
        },
        "durability": {"max_unsynced_ms": 250, "max_unsynced_steps": 50},
        "environment": null,
        "extensions": [],
        "faults": {"plan": [], "recovery": "restart_from_last_validated"},
        "format": schemas::CONTRACT_FORMAT,
        "keys": null,
        "membership": {"kind": "standalone"},
        "name": name,
        "nonclaims": [
            "That the model is good for anything but what the val split measures.",
            "That another run with other seeds would come out alike."
        ],
        "numerics": {
            "accumulation_dtype": "f32", "compute_dtype": "f32", "determinism": "bitwise", "loss_scaler": null,
            "parameter_dtype": "f32", "reduction": "microbatch_tree"
        },
        "objective": "next_token_cross_entropy",
        "order": {"scheme": "keyed_permutation/1"},
        "parameters": binding(PARAMETERS),
        "plan": null,
        "purpose": {
            "authority": {
                "expires": null, "granted_by": "whoever runs this on their own machine",
                "non_authorities": ["To release or deploy the model."], "scope": "To train one model from this contract."
            },
            "statement": format!("A first run of the {} preset.", preset_name(preset))
        },
        "qualification": {"metric": "bits_per_byte", "plaintext": null, "sealed": binding(SEALED)},
        "quality_target": null,
        "residuals": [{
            "description": "All roles' keys were made on one host, so that nobody independent has checked anything.",
            "owner": "whoever runs this"
        }],
        "resume": {"class": "bitwise", "tolerance": null},
        "retention": {"custodian": "whoever runs this", "days": 30},
        "ruleset": {"edition": ledger::freeze::RULESET_EDITION, "profile": "native"},
        "seeds": {"data_order": "1", "dropout": "2", "initialization": "3"},
        "selection": {"family": "every_evaluated_checkpoint", "stream": STREAM, "tie": "earliest"},
        "state_classes": state_classes(),
        "state_digest_every_steps": null,
        "topology": {"learners": 1, "permitted_rewrites": ["thread_count"], "workers": 1},
        "update": {"card": binding(CARD)}
    })
}

/// Name of a preset on the command line.
fn preset_name(preset: Preset) -> &'static str {
    match preset {
        Preset::Tiny => "tiny",
        Preset::Demo => "demo",
        Preset::Sotu => "sotu",
    }
}

fn state_classes() -> Value {
    let class = |class: &str, reason: Option<&str>| json!({"class": class, "not_applicable": reason});
    json!([
        class("model", None),
        class("optimizer", None),
        class("scheduler", Some("function_of_step")),
        class("rng_cpu", Some("counter_based_randomness")),
        class("rng_device", Some("no_device_randomness")),
        class("loss_scaler", Some("no_loss_scaling")),
        class("data_cursor", None),
        class("sampler", Some("function_of_position")),
        class("topology", None),
        class("compiler_plan", None),
        class("accumulated_gradients", Some("update_boundaries_only")),
        class("selection_state", None)
    ])
}

/// What each block is for; `$comment` members are no part of what is frozen.
const COMMENTS: [(&str, &str); 25] = [
    (
        "",
        "A training contract, before the freeze. Members named $comment explain and are dropped. `ledger init --check contract.json` says what would be refused, `ledger freeze contract.json` signs what is left; then nothing here can change. docs/CONTRACT.md explains every member.",
    ),
    (
        "/architecture",
        "The model: a Llama-shaped decoder over bytes. Changing it means writing parameters.json again (trainer parameters; --freeze keeps parameters as they are initialised), and, for context_length, the example tables.",
    ),
    (
        "/batch",
        "global_examples = microbatch_examples x accumulation x data_parallel. How a batch is split does not change the data that a step sees.",
    ),
    (
        "/budget",
        "Whatever is reached first ends the run; max_attempts counts process starts, so leave room for crashes.",
    ),
    (
        "/checkpoints",
        "At step 0, every so many steps, and at the last one. The store is a folder beside the ledger, or s3://bucket/prefix.",
    ),
    (
        "/code",
        "The trainer that may execute this, by digest, as `trainer identity --json` prints it. Another build is refused.",
    ),
    ("/credit", "How parameters get their credit; this edition knows reverse-mode differentiation."),
    (
        "/data",
        "The data lease: who may be trained on, until when, and the files. Null digests and sizes are filled in at the freeze.",
    ),
    ("/durability", "How much a crash of the machine may take from the record."),
    ("/environment", "What the trainer was built with and runs on."),
    ("/evaluation", "Streams are measured at step 0, every so many steps, and at the last one."),
    ("/expected", "What the run should need; an audit compares."),
    ("/faults", "What happens after a crash."),
    ("/floors", "Free disk and memory below which the trainer ends cleanly."),
    (
        "/keys",
        "Public keys by role. Roles whose keys were made on one host are reported as not independent. `ledger keygen` makes keys on another machine.",
    ),
    ("/numerics", "`bitwise` promises the same bytes from the same contract on the same plan."),
    (
        "/plan",
        "Kernels and CPU features that may run, as `trainer identity --json` prints them; others could give other bits.",
    ),
    ("/purpose", "EDIT THIS: why the run exists, who allowed it, until when, and what it may not do."),
    (
        "/qualification",
        "The sealed set: only the qualifier's key opens it, once, on record, after the handoff.",
    ),
    ("/retention", "EDIT THIS: who keeps ledger, candidates and failed attempts, and how long."),
    ("/ruleset", "The edition of rules that an audit uses."),
    (
        "/seeds",
        "Decimal strings of 64-bit numbers. Everything random is a function of these and of coordinates.",
    ),
    ("/selection", "Which candidate is handed off; only a stream of the val split may decide."),
    ("/topology", "One process, one learner. Any number of threads gives the same bits."),
    (
        "/update",
        "The optimizer policy card: the update rule with all of its constants. The schedule has to cover its groups.",
    ),
];

/// Adds the comments to the objects that they are about.
pub(crate) fn add_comments(contract: &mut Value) {
    for (pointer, comment) in COMMENTS {
        let object = contract.pointer_mut(pointer).and_then(Value::as_object_mut);
        if let Some(object) = object {
            object.insert(ledger::strict::COMMENT_KEY.to_owned(), comment.into());
        }
    }
}

/// An edit of a contract from the command line: pointer and value.
pub(crate) fn parse_edit(text: &str) -> Result<(String, Value), String> {
    let (pointer, value) = text.split_once('=').ok_or("it has no `=`")?;
    if !pointer.starts_with('/') {
        return Err("it does not begin with a JSON pointer such as /batch/accumulation".to_owned());
    }
    let value = ledger::strict::parse(value.as_bytes(), ledger::strict::ParseOptions::default())
        .map_err(|error| format!("{value:?} is not JSON ({}); a text needs its quotes", error.kind))?;
    Ok((pointer.to_owned(), value))
}

/// Puts a value at a pointer whose parent exists.
pub(crate) fn apply_edit(contract: &mut Value, pointer: &str, value: Value) -> Result<(), String> {
    let (parent, name) = pointer.rsplit_once('/').unwrap_or(("", pointer));
    let name = name.replace("~1", "/").replace("~0", "~");
    match contract.pointer_mut(parent) {
        // Unknown members are found with the rest of what is wrong.
        Some(Value::Object(object)) => {
            object.insert(name, value);
            Ok(())
        }
        Some(Value::Array(list)) if name == "-" => {
            list.push(value);
            Ok(())
        }
        Some(Value::Array(list)) => {
            let num_elements = list.len();
            let index = name.parse::<usize>().ok().filter(|index| *index < num_elements);
            let index =
                index.ok_or_else(|| format!("{parent} has {num_elements} elements and none named {name}"))?;
            list[index] = value;
            Ok(())
        }
        _ => Err(format!("the contract has nothing at {parent} to hold {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_comment_has_a_place() {
        let mut contract = contract(Preset::Tiny, "x");
        for block in ["code", "environment", "keys", "plan"] {
            contract[block] = json!({});
        }
        add_comments(&mut contract);
        for (pointer, comment) in COMMENTS {
            assert_eq!(
                contract.pointer(pointer).map(|object| &object["$comment"]),
                Some(&json!(comment)),
                "{pointer}"
            );
        }
    }

    #[test]
    fn edits_reach_members_and_elements() {
        let mut contract = contract(Preset::Tiny, "x");
        for edit in
            ["/batch/accumulation=4", "/nonclaims/0=\"a\"", "/nonclaims/-=\"b=c\"", "/quality_target=null"]
        {
            let (pointer, value) = parse_edit(edit).expect("an edit");
            apply_edit(&mut contract, &pointer, value).expect("applies");
        }
        assert_eq!(contract["batch"]["accumulation"], json!(4));
        assert_eq!(contract["nonclaims"][0], json!("a"));
        assert_eq!(contract["nonclaims"][2], json!("b=c"));
        for edit in ["batch=1", "/batch", "/name=text", "/batch/accumulation=NaN"] {
            assert!(parse_edit(edit).is_err(), "{edit}");
        }
        assert!(apply_edit(&mut contract, "/none/x", json!(1)).is_err());
        assert!(apply_edit(&mut contract, "/nonclaims/9", json!("x")).is_err());
    }
}
