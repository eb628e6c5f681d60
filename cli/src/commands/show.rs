//! `ledger show`: the answer to "which version trained this, on which data, in
//! which order", and what came of it, from the ledger alone.
//!
//! It repeats what entries say and judges nothing; `ledger audit` does.

use std::collections::BTreeMap;

use ledger::reader::Reader;
use schemas::body::Body;
use schemas::contract::{Architecture, Contract, FileBinding, Initialization, Membership};
use schemas::data::DataManifest;
use schemas::entry::LedgerKind;
use serde_json::{Value, json};

use crate::arguments::LedgerArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json};

pub(crate) fn run(arguments: &LedgerArguments) -> Result<u8, Failure> {
    let reader = super::open_ledger(&arguments.ledger)?;
    let (kind, identifier) = reader.identity()?;
    if kind != LedgerKind::Run {
        return Err(Failure::new(
            format!("{} is a ledger of another kind ({identifier})", arguments.ledger.display()),
            format!("ledger list {} shows its entries", arguments.ledger.display()),
        ));
    }
    let frozen = reader.contract().or_hint("`ledger audit` says what is wrong with entry 0")?;
    let history = History::read(&reader)?;
    let manifest = manifest(&reader, &frozen.contract)?;
    if arguments.json {
        print_json(
            "show",
            json!({
                "attempts": history.attempts, "candidates": history.candidates, "checkpoints": history.checkpoints,
                "contract": frozen.contract, "contract_digest": frozen.digest, "end": history.end,
                "handoffs": history.handoffs, "heads": reader.heads()?.len(), "manifest": manifest,
                "num_entries": reader.num_entries(), "num_steps_recorded": history.num_steps,
                "run": frozen.run, "selected": history.selected
            }),
        )?;
        return Ok(0);
    }
    print(format!("run         {}", frozen.run))?;
    print(format!("contract    {} ({})", frozen.digest, frozen.contract.name))?;
    print(format!("signed by   {}", frozen.signature.keyid))?;
    print(format!("purpose     {}", frozen.contract.purpose.statement))?;
    print_membership(&frozen.contract)?;
    print_version(&frozen.contract)?;
    print_lineage(&frozen.contract)?;
    print_data(&frozen.contract, manifest.as_ref())?;
    print_order(&frozen.contract)?;
    print_history(&history, &frozen.contract)?;
    print(format!(
        "\nEntries: {}, heads: {}",
        count(reader.num_entries()),
        count(reader.heads()?.len() as u64)
    ))?;
    print("This repeats what the ledger says. `ledger audit` checks whether it holds.")?;
    Ok(0)
}

/// The data manifest, where the ledger holds it.
fn manifest(reader: &Reader, contract: &Contract) -> Result<Option<DataManifest>, Failure> {
    let Some(digest) = contract.data.manifest.digest else { return Ok(None) };
    let bytes = reader.artifact(&digest).or_hint("`ledger audit` says what is missing")?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// What happened, gathered in one pass.
#[derive(Debug, Default)]
struct History {
    attempts: BTreeMap<u32, Value>,
    candidates: Vec<Value>,
    checkpoints: BTreeMap<String, Value>,
    end: Option<Value>,
    handoffs: Vec<Value>,
    num_steps: u64,
    selected: Option<Value>,
}

impl History {
    fn read(reader: &Reader) -> Result<Self, Failure> {
        let mut history = Self::default();
        for entry in reader.entries(0) {
            let entry = entry.or_hint("`ledger audit` says what is wrong with the entry")?;
            history.add(&entry.body, entry.index);
        }
        Ok(history)
    }

    fn add(&mut self, body: &Body, index: u64) {
        match body {
            Body::Step(_) => self.num_steps += 1,
            Body::AttemptStart(body) => {
                let attempt = json!({
                    "backend": body.obs.plan.compiler.backend, "code": body.det.code.digest, "cpu": body.obs.cpu,
                    "entry": index, "from_step": body.det.from_step, "host": body.obs.host,
                    "last_step": null, "num_threads": body.obs.plan.num_threads, "outcome": null,
                    "reason": body.det.reason, "resumed_from": body.det.resumed_from
                });
                self.attempts.insert(body.det.attempt.0, attempt);
            }
            Body::AttemptEnd(body) => {
                if let Some(attempt) = self.attempts.get_mut(&body.det.attempt.0) {
                    attempt["last_step"] = json!(body.det.last_step);
                    attempt["outcome"] = json!(body.det.outcome);
                    attempt["why"] = json!(body.obs.reason);
                }
            }
            Body::CheckpointRequested(body) => self.stage(body.obs.checkpoint.as_str(), body.det.step, "requested"),
            Body::CheckpointStaged(body) => self.stage(body.obs.checkpoint.as_str(), body.det.step, "staged"),
            Body::CheckpointDurablyCommitted(body) => {
                self.stage(body.obs.checkpoint.as_str(), body.det.step, "durably_committed");
                if let Some(checkpoint) = self.checkpoints.get_mut(body.obs.checkpoint.as_str()) {
                    checkpoint["model"] = json!(body.det.model);
                    checkpoint["path"] = json!(body.obs.path);
                }
            }
            Body::CheckpointValidated(body) => self.stage(body.obs.checkpoint.as_str(), body.det.step, "validated"),
            Body::CheckpointResumeQualified(body) => {
                self.stage(body.obs.checkpoint.as_str(), body.det.step, "resume_qualified");
            }
            Body::CheckpointFailed(body) => self.stage(body.obs.checkpoint.as_str(), body.det.step, "failed"),
            Body::CheckpointQuarantined(body) => {
                self.stage(body.obs.checkpoint.as_str(), body.det.step, "quarantined");
            }
            Body::CheckpointRetired(body) => self.stage(body.obs.checkpoint.as_str(), body.det.step, "retired"),
            Body::CandidateAdmitted(body) => self.candidates.push(json!({
                "candidate": body.obs.candidate, "model": body.det.model, "step": body.det.step,
                "value": body.det.value
            })),
            Body::CandidateSelected(body) => {
                self.selected = Some(json!({
                    "candidate": body.obs.candidate, "model": body.det.model, "step": body.det.step,
                    "stream": body.det.stream, "value": body.det.value
                }));
            }
            Body::RunEnd(body) => {
                self.end = Some(json!({
                    "last_step": body.det.last_step, "outcome": body.det.outcome, "reason": body.det.reason,
                    "target_met": body.det.target_met
                }));
            }
            Body::HandoffIssued(body) => self.handoffs.push(json!({
                "candidate": body.obs.candidate, "entry": index, "report": body.obs.report, "step": body.det.step
            })),
            _ => {}
        }
    }

    fn stage(&mut self, checkpoint: &str, step: u64, stage: &str) {
        let known = self.checkpoints.entry(checkpoint.to_owned()).or_insert_with(|| json!({}));
        known["step"] = json!(step);
        known["stage"] = json!(stage);
    }
}

/// A value of a JSON object as text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The place in a campaign, for a run that has one.
fn print_membership(contract: &Contract) -> Result<(), Failure> {
    let Membership::Campaign { arm, campaign, rescue_level, trial, .. } = &contract.membership else {
        return Ok(());
    };
    print(format!("campaign    {campaign}, arm {arm}, trial {trial}, rescue level {rescue_level}"))
}

fn print_version(contract: &Contract) -> Result<(), Failure> {
    let (code, plan) = (&contract.code, &contract.plan);
    let features = if code.features.is_empty() { "none".to_owned() } else { code.features.join(", ") };
    print("\nWhich version")?;
    print(format!("  code         {} {} {}", code.package, code.version, code.digest))?;
    print(format!("  features     {features}"))?;
    print(format!(
        "  built with   {} for {} {}",
        contract.environment.rustc, contract.environment.operating_system, contract.environment.architecture
    ))?;
    print(format!("  runs on      {} ({:?}), {}", plan.backend, plan.device, plan.cpu_features.join(" ")))?;
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    print(format!(
        "  model        Llama decoder, {} layers of {}, {} heads ({} for keys and values), context {}, dropout {}",
        decoder.num_layers,
        decoder.hidden_size,
        decoder.num_heads,
        decoder.num_kv_heads,
        decoder.context_length,
        decoder.dropout
    ))?;
    print(format!("  parameters   {}", binding(&contract.parameters)))?;
    print(format!("  policy card  {}", binding(&contract.update.card)))?;
    print(format!(
        "  seeds        initialization {}, dropout {}",
        contract.seeds.initialization.0, contract.seeds.dropout.0
    ))
}

/// The run that the weights come from, where they come from one.
fn print_lineage(contract: &Contract) -> Result<(), Failure> {
    let Some(warm_start) = contract.initialization.as_ref().map(Initialization::warm_start) else {
        return Ok(());
    };
    let lineage = &warm_start.lineage;
    print("\nWhere it starts")?;
    print(format!("  weights      {}", binding(&warm_start.weights)))?;
    print(format!("  checkpoint   {} (step {})", lineage.checkpoint, lineage.step))?;
    print(format!("  of run       {}", lineage.run))?;
    print(format!("  contract     {}", lineage.contract))?;
    print(format!("  its ledger   {} entries, root {}", count(lineage.head.size), lineage.head.root))?;
    print("  Only weights were taken over; that the source's ledger holds them is the owner's statement.")
}

fn binding(binding: &FileBinding) -> String {
    let digest = binding.digest.map_or_else(|| "-".to_owned(), |digest| digest.to_string());
    format!("{} {digest}", binding.path)
}

fn print_data(contract: &Contract, manifest: Option<&DataManifest>) -> Result<(), Failure> {
    print("\nOn which data")?;
    print(format!("  manifest     {}", binding(&contract.data.manifest)))?;
    for shard in manifest.into_iter().flat_map(|manifest| &manifest.shards) {
        print(format!(
            "  {:<5} shard  {} {} ({} bytes, {:?}; {})",
            shard.split.name(),
            shard.path,
            shard.digest,
            count(shard.num_bytes),
            shard.license_class,
            shard.source
        ))?;
    }
    print(format!("  train table  {}", binding(&contract.data.train_examples)))?;
    print(format!("  val table    {}", binding(&contract.data.val_examples)))?;
    print(format!("  sealed set   {}", binding(&contract.qualification.sealed)))?;
    print(format!("  terms        {}", contract.data.terms))
}

fn print_order(contract: &Contract) -> Result<(), Failure> {
    let scheme = serde_json::to_value(&contract.order)?;
    print("\nIn which order")?;
    print(format!("  order        {} with seed {}", text(&scheme["scheme"]), contract.seeds.data_order.0))?;
    print(format!(
        "  batch        {} examples a step: {} x {} accumulated x {} workers",
        contract.batch.global_examples,
        contract.batch.microbatch_examples,
        contract.batch.accumulation,
        contract.batch.data_parallel
    ))?;
    print(
        "  meaning      step t takes the positions (t-1) x batch to t x batch; position to example is a keyed permutation for each epoch (docs/FORMAT.md, \"Data order\")",
    )
}

fn print_history(history: &History, contract: &Contract) -> Result<(), Failure> {
    print(format!("\nWhat happened ({} steps on record)", count(history.num_steps)))?;
    for (attempt, value) in &history.attempts {
        let same =
            if value["code"] == json!(contract.code.digest) { "the contract's code" } else { "OTHER CODE" };
        let outcome = match (&value["outcome"], &value["last_step"]) {
            (outcome, _) if outcome.is_null() => "no terminal entry".to_owned(),
            (outcome, step) if step.is_null() => text(outcome),
            (outcome, step) => format!("{} at step {}", text(outcome), text(step)),
        };
        print(format!(
            "  attempt {attempt:<4} {} from step {}, {outcome}, {same}, {} threads",
            text(&value["reason"]),
            text(&value["from_step"]),
            text(&value["num_threads"])
        ))?;
    }
    for (checkpoint, value) in &history.checkpoints {
        print(format!("  checkpoint   {checkpoint} {} {}", text(&value["stage"]), text(&value["model"])))?;
    }
    for candidate in &history.candidates {
        print(format!("  candidate    {} {}", text(&candidate["candidate"]), text(&candidate["value"])))?;
    }
    if let Some(selected) = &history.selected {
        print(format!(
            "  selected     {} with {} {} ({})",
            text(&selected["candidate"]),
            text(&selected["stream"]),
            text(&selected["value"]),
            text(&selected["model"])
        ))?;
    }
    if let Some(end) = &history.end {
        let target = match (&contract.quality_target, &end["target_met"]) {
            (Some(target), Value::Bool(true)) => format!("; the target of {} was met", target.threshold),
            (Some(target), _) => format!("; THE TARGET OF {} WAS MISSED", target.threshold),
            (None, _) => String::new(),
        };
        print(format!(
            "  end          {} at step {}: {}{target}",
            text(&end["outcome"]),
            text(&end["last_step"]),
            text(&end["reason"])
        ))?;
    }
    for handoff in &history.handoffs {
        print(format!("  handed off   {} (entry {})", text(&handoff["candidate"]), text(&handoff["entry"])))?;
    }
    Ok(())
}
