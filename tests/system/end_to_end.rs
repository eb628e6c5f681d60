//! A whole honest run, from contract to qualification.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use system_tests::run_folder::RunFolder;

/// Largest difference between trainer and evaluator, in nats a token.
const MAX_DIFFERENCE: f64 = 1e-4;

/// Rules that have nothing to look at in a trained run of the preset `tiny`, and why:
/// what the contract does not ask for, or what did not happen. Every other rule has
/// to look at something; one that could say that it does not apply because the
/// record lacks what its writer left out would not be in this list.
const NOTHING_TO_LOOK_AT: [(&str, &str); 25] = [
    ("GL011", "no --trust file was given"),
    ("GL014", "the contract names no witness"),
    ("GL015", "the contract names no witness"),
    ("GL016", "the contract names no witness"),
    ("GL215", "one process executed every update"),
    ("GL216", "the run recovered from nothing"),
    ("GL217", "no fault was observed"),
    ("GL409", "the parameter manifest freezes none"),
    ("GL510", "the contract has no quality target"),
    ("GL611", "the contract keeps no averages"),
    ("GL613", "the parameter manifest freezes none"),
    ("GL614", "the contract keeps no state tree"),
    ("GL620", "no checkpoint was probed"),
    ("GL621", "no checkpoint was probed"),
    ("GL622", "no checkpoint is called resume-qualified"),
    ("GL623", "the contract's resume class is"),
    ("GL630", "the contract has no loss scaler"),
    ("GL631", "the contract has no loss scaler"),
    ("GL632", "the contract saves at update boundaries only"),
    ("GL633", "the contract captures no stream"),
    ("GL644", "the contract captures no random state"),
    ("GL646", "the contract draws its initial values"),
    ("GL650", "the contract keeps every checkpoint"),
    ("GL710", "no fault was observed"),
    ("GL711", "no fault was injected"),
];

/// The same before the evaluator, the validator and the handoff have added what is
/// theirs. An audit accepts without it; a handoff does not, unless it is told to.
const NOT_YET: [(&str, &str); 5] = [
    ("GL109", "there are no val numbers of an evaluator"),
    ("GL111", "no report was saved"),
    ("GL112", "no candidate was handed off"),
    ("GL508", "there are no val numbers of the evaluator"),
    ("GL511", "no candidate was handed off"),
];

fn rules(report: &Value) -> &Vec<Value> {
    report["rules"].as_array().expect("a report lists its rules")
}

/// Every rule passed and looked at something, but for those that are expected not
/// to apply, each for its own reason.
#[track_caller]
fn check_rules(report: &Value, expected: &[(&str, &str)]) {
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(rules(report).len(), validator::rules::catalogue().len(), "{report:#}");
    let mut not_applicable = Vec::new();
    for rule in rules(report) {
        let code = rule["code"].as_str().expect("a code");
        match rule["status"].as_str() {
            Some("passed") => assert!(rule["num_checked"].as_u64() > Some(0), "it checked nothing: {rule:#}"),
            Some("not_applicable") => {
                let reason = rule["reason"].as_str().unwrap_or_default();
                let known = expected.iter().find(|(known, _)| *known == code);
                assert!(known.is_some_and(|(_, words)| reason.starts_with(*words)), "{rule:#}");
                not_applicable.push(code);
            }
            _ => panic!("a rule that did not run, or failed: {rule:#}"),
        }
    }
    let mut codes: Vec<&str> = expected.iter().map(|(code, _)| *code).collect();
    codes.sort_unstable();
    not_applicable.sort_unstable();
    assert_eq!(not_applicable, codes, "rules that were thought to have nothing to look at");
}

#[test]
fn every_rule_runs_on_an_honest_run() {
    let run = RunFolder::trained();
    let report = run.report();
    check_rules(&report, &[&NOTHING_TO_LOOK_AT[..], &NOT_YET[..]].concat());
    let printed = run.audit(&[]).expect_code(0);
    let first = printed.stdout.lines().next();
    assert_eq!(first, Some("accepted: every rule that applies ran and found nothing wrong"));
    let denominators = &report["denominators"];
    assert_eq!(denominators["attempted"], 1);
    assert_eq!(denominators["completed"], 1);
    assert_eq!(denominators["failed"], 0);
    assert_eq!(denominators["selected"], 1);
    assert_eq!(denominators["steps_executed"], denominators["steps_logical"]);
    assert_eq!(report["independence"]["status"], "not established", "its keys were made on one host");
    assert!(report["nonclaims"].as_array().is_some_and(|nonclaims| !nonclaims.is_empty()));
}

#[test]
fn a_candidate_is_handed_off_and_qualified() -> Result<()> {
    let run = RunFolder::trained();
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    assert_eq!(run.report()["selection_basis"], "evaluator");
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let _ = run
        .evaluator_command("qualify", &["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"])
        .expect_code(0);
    agreement(&run)?;

    let qualification = system_tests::dump::entries(&run.path().join("qualification.db"))?;
    let kind = |name: &str| qualification.iter().position(|entry| entry["kind"] == name);
    let opened = kind("qualification.opened").context("the opening is recorded")?;
    let result = kind("qualification.result").context("the result is recorded")?;
    assert!(opened < result, "the opening is recorded before the result");
    let value = &qualification[result]["body"]["det"]["value"];
    assert!(value.as_f64().is_some_and(|bits| bits > 0.0 && bits < 9.0), "{value} bits a byte");
    // The handoff is an entry of the run, and the run is still accepted.
    assert!(run.entries().iter().any(|entry| entry["kind"] == "handoff.issued"));
    check_rules(&run.report(), &NOTHING_TO_LOOK_AT);
    Ok(())
}

/// Two forward passes that share no code give the same numbers.
fn agreement(run: &RunFolder) -> Result<()> {
    let numbers = system_tests::dump::entries(&run.path().join("qualification.db"))?;
    let entries = run.entries();
    let mut num_compared = 0;
    for number in numbers.iter().filter(|entry| entry["kind"] == "qualification.val") {
        let own = &number["body"]["det"];
        let trainer = entries
            .iter()
            .filter(|entry| entry["kind"] == "eval" && entry["step"] == own["step"])
            .find(|entry| entry["body"]["det"]["stream"] == own["stream"])
            .with_context(|| format!("the trainer's number for {own:#}"))?;
        let nats = |det: &Value| Some(det["total_nats"].as_f64()? / det["num_tokens"].as_f64()?);
        let own_nats = nats(own).context("the evaluator's nats")?;
        let trainer_nats = nats(&trainer["body"]["det"]).context("the trainer's nats")?;
        assert!((own_nats - trainer_nats).abs() <= MAX_DIFFERENCE, "{own_nats} and {trainer_nats}");
        num_compared += 1;
    }
    assert!(num_compared >= 2, "only {num_compared} candidates were compared");
    Ok(())
}

#[test]
fn a_candidate_has_the_layout_that_hugging_face_tools_load() -> Result<()> {
    let run = RunFolder::trained();
    let report = run.report();
    let folder = run.path().join(report["selected"]["path"].as_str().context("a candidate was selected")?);
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    let count = |name: &str| config[name].as_u64().with_context(|| format!("config.json has {name}"));
    let (hidden, heads) = (count("hidden_size")?, count("num_attention_heads")?);
    let (kv_heads, inner) = (count("num_key_value_heads")?, count("intermediate_size")?);
    let head_dim = config["head_dim"].as_u64().unwrap_or(hidden / heads);
    let tensors = tensors(&folder.join("model.safetensors"))?;
    let check = |name: &str, shape: &[u64]| {
        let tensor = tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        assert_eq!(tensor["dtype"], "F32", "{name}");
        assert_eq!(tensor["shape"], Value::from(shape), "{name}");
    };
    check("model.embed_tokens.weight", &[count("vocab_size")?, hidden]);
    check("model.norm.weight", &[hidden]);
    for layer in 0..count("num_hidden_layers")? {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        check(&name("self_attn.q_proj"), &[heads * head_dim, hidden]);
        check(&name("self_attn.k_proj"), &[kv_heads * head_dim, hidden]);
        check(&name("self_attn.v_proj"), &[kv_heads * head_dim, hidden]);
        check(&name("self_attn.o_proj"), &[hidden, heads * head_dim]);
        check(&name("mlp.gate_proj"), &[inner, hidden]);
        check(&name("mlp.up_proj"), &[inner, hidden]);
        check(&name("mlp.down_proj"), &[hidden, inner]);
        check(&name("input_layernorm"), &[hidden]);
        check(&name("post_attention_layernorm"), &[hidden]);
    }
    let tied =
        config["tie_word_embeddings"].as_bool().context("config.json says whether the head is tied")?;
    assert_eq!(tensors.contains_key("lm_head.weight"), !tied, "a tied head is stored once");
    Ok(())
}

/// The header of a safetensors file: tensors by name.
fn tensors(path: &Path) -> Result<serde_json::Map<String, Value>> {
    let bytes = std::fs::read(path)?;
    let (length, rest) =
        bytes.split_first_chunk::<8>().context("a safetensors file begins with its length")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let header: Value = serde_json::from_slice(rest.get(..length).context("the header is cut")?)?;
    let mut header = header.as_object().context("the header is an object")?.clone();
    header.remove("__metadata__");
    Ok(header)
}

#[test]
fn show_answers_which_version_on_which_data_in_which_order() {
    let run = RunFolder::trained();
    let contract = run.entries()[0]["body"]["det"]["contract"].as_str().map(str::to_owned);
    let contract: Value = serde_json::from_str(&contract.expect("entry 0 holds the contract")).expect("JSON");
    let shown = run.ledger_command("show", &[]).expect_code(0).stdout;
    let expected = [
        ("version", &contract["code"]["version"]),
        ("code", &contract["code"]["digest"]),
        ("data", &contract["data"]["manifest"]["digest"]),
        ("examples", &contract["data"]["train_examples"]["digest"]),
        ("order", &contract["order"]["scheme"]),
        ("seed of the order", &contract["seeds"]["data_order"]),
    ];
    for (what, value) in expected {
        let text = value.as_str().expect("a text in the contract");
        assert!(shown.contains(text), "`ledger show` does not say the {what}: {text}\n{shown}");
    }
}
