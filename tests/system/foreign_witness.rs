//! Two witnesses of which a contract asks for both, and one of them is somebody
//! else's: what it cosigns is taken, what it refuses is told, and what this
//! project writes is verified by a verifier that shares nothing with it.

use anyhow::{Context, Result};
use ledger::keys::{KeyRing, Role};
use serde_json::json;
use system_tests::foreign_witness::{self, ForeignWitness, ask};
use system_tests::forgery::Forgery;
use system_tests::programs::{self, Finished, LEDGER};
use system_tests::run_folder::RunFolder;
use system_tests::witnesses::{NAME, WitnessServer, cosigned};

/// Both witnesses, and the run that names them.
struct Two {
    foreign: ForeignWitness,
    own: WitnessServer,
    run: RunFolder,
    /// Verifier keys of the owner and of the trainer under the run's origin.
    log_keys: Vec<String>,
}

fn frozen() -> Result<Two> {
    let run = RunFolder::tiny();
    let own = WitnessServer::start(&run)?;
    let mut foreign = ForeignWitness::make()?;
    run.edit_contract(|contract| {
        contract["keys"]["witnesses"] = json!([foreign.named, own.named]);
        contract["keys"]["witness_quorum"] = json!(2);
    });
    let _ = run.freeze().expect_code(0);
    let head = std::fs::read_to_string(run.path().join("run.db.head"))?;
    let origin = head.lines().next().context("an origin")?;
    let keys = KeyRing::open(&run.path().join("keys"))?;
    let public = |role| keys.public(role).map(|key| key.public);
    let (owner, trainer) = (public(Role::Owner)?, public(Role::Trainer)?);
    let said = ask(&["log-keys", origin, &owner, &trainer])?.taken();
    let log_keys: Vec<String> = serde_json::from_value(said["vkeys"].clone())?;
    foreign.serve(origin, &log_keys)?;
    Ok(Two { foreign, own, run, log_keys })
}

fn add(run: &RunFolder, url: &str, name: &str) -> Finished {
    programs::run(LEDGER, run.path(), &["witness", "add", "run.db", "--url", url, "--name", name])
}

#[test]
fn a_run_is_accepted_when_both_of_two_witnesses_cosigned_and_one_is_somebody_elses() -> Result<()> {
    let Two { foreign, own, run, log_keys } = frozen()?;
    let (own_url, foreign_url) = (own.url.clone(), foreign.url.clone());
    for (url, name) in [(&own_url, NAME), (&foreign_url, foreign_witness::NAME)] {
        let _ = add(&run, url, name).expect_code(0);
    }
    let _ = run.train().expect_code(0);

    // One of two is not both.
    let _ = add(&run, &own_url, NAME).expect_code(0);
    let audited = run.audit(&[]).expect_code(4);
    assert!(audited.stdout.contains("GL014"), "{audited}");
    let _ = add(&run, &foreign_url, foreign_witness::NAME).expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    let num_entries = run.entries().len();
    let status = foreign.status()?;
    assert_eq!(status["logs"][0]["size"], num_entries, "it saw the run's end: {status}");

    // Another history of the run: it has the keys, and neither witness cosigns it.
    let twin = run.copy();
    let mut forgery = Forgery::open(&twin.ledger())?;
    let step = forgery.first("step")?;
    step["time_us"] = json!(step["time_us"].as_u64().context("a time")? + 1);
    forgery.seal(Some(&KeyRing::open(&twin.path().join("keys"))?))?;
    for (url, name) in [(&own_url, NAME), (&foreign_url, foreign_witness::NAME)] {
        add(&twin, url, name).expect_complaint(1, "run.db", &["another history", name]);
    }
    let status = foreign.status()?;
    assert!(status["logs"][0]["evidence"].as_u64().is_some_and(|kept| kept > 0), "{status}");

    verified_elsewhere(&run, &log_keys[1], [&own.vkey, &foreign.vkey])
}

/// The cosigned heads, and a proof with both cosignatures, by `aics-tlog`.
fn verified_elsewhere(run: &RunFolder, log: &str, witnesses: [&str; 2]) -> Result<()> {
    let _ = run.ledger_command("proof", &["7", "--output", "7.tlog-proof"]).expect_code(0);
    let entries = run.entries();
    let path = |name: &str| run.path().join(name).to_string_lossy().into_owned();
    let show = |verb: &str, file: &str, log: &str, witnesses: [&str; 2]| {
        let [first, second] = witnesses;
        ask(&[verb, file, "--log", log, "--witness", first, "--witness", second, "--quorum", "2"])
    };
    let heads = cosigned(run).to_string_lossy().into_owned();
    let said = show("head", &heads, log, witnesses)?.taken();
    assert_eq!(said["size"], entries.len(), "{said}");
    assert_eq!(said["witnesses"], json!([foreign_witness::NAME, NAME]));
    let proof = path("7.tlog-proof");
    let said = show("proof", &proof, log, witnesses)?.taken();
    assert_eq!((&said["index"], &said["kind"]), (&json!(7), &entries[7]["kind"]), "{said}");

    // Controls: a witness that did not sign, another size, another time, another
    // index, and the key of a role that signs no such head.
    let stranger = run.path().join("stranger");
    std::fs::create_dir(&stranger)?;
    let _ = programs::run(LEDGER, &stranger, &["keygen", "--role", "witness"]).expect_code(0);
    let init = ["witness", "init", "--name", "witness.example/w3", "--json"];
    let made = programs::run(LEDGER, &stranger, &init).expect_code(0).json();
    let other = made["vkey"].as_str().context("a verifier key")?;
    show("head", &heads, log, [witnesses[0], other])?.refused("aics-tlog");
    show("head", &heads, witnesses[0], witnesses)?.refused("aics-tlog");
    let changed = |from: &str, old: &str, new: &str| -> Result<String> {
        let text = std::fs::read_to_string(from)?;
        assert!(text.contains(old), "{from} does not say {old:?}");
        let to = path("changed");
        std::fs::write(&to, text.replace(old, new))?;
        Ok(to)
    };
    let size = |size: usize| format!("\n{size}\n");
    let other_size = changed(&heads, &size(entries.len()), &size(entries.len() + 1))?;
    show("head", &other_size, log, witnesses)?.refused("aics-tlog");
    let other_index = changed(&proof, "\nindex 7\n", "\nindex 6\n")?;
    show("proof", &other_index, log, witnesses)?.refused("do not lead");
    Ok(())
}
