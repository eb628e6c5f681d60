//! Campaigns by the programs: the example is frozen, runs are made for it,
//! bound, listed; what is refused says so and changes nothing.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use ledger::keys::KeyRing;
use schemas::dsse::{CAMPAIGN_REPORT_PAYLOAD_TYPE, Envelope};
use serde_json::{Value, json};
use system_tests::dump;
use system_tests::forgery::{Forgery, past_triggers};
use system_tests::honest::above_notes;
use system_tests::mutations::campaigns::{self, CampaignMutation};
use system_tests::programs::{EVALUATOR, Finished, LEDGER, TRAINER, command, run};
use system_tests::run_folder::{copy_folder, flip_byte};
use tempfile::TempDir;

/// Changed campaigns at a time.
const NUM_JOBS: usize = 2;

/// A folder with the example, frozen as `campaign.db`.
struct Campaign(TempDir);

impl Campaign {
    #[track_caller]
    fn new() -> Self {
        let folder = Self(TempDir::with_prefix("governed-ledger-").expect("a temporary folder"));
        std::fs::copy(example(), folder.path().join("question.json")).expect("copied");
        let _ = folder.ledger(&["campaign", "freeze", "question.json"]).expect_code(0);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    fn ledger(&self, arguments: &[&str]) -> Finished {
        run(LEDGER, self.path(), arguments)
    }

    /// Makes a run's folder.
    #[track_caller]
    fn init(&self, name: &str, arm: &str, seed: &str, further: &[&str]) -> Finished {
        let fixed = ["init", "--lipsum", "--preset", "tiny", "--campaign", "campaign.db", "--output", name];
        self.ledger(&[&fixed, &["--arm", arm, "--seed", seed][..], further].concat())
    }

    /// Makes a run and freezes it.
    #[track_caller]
    fn frozen(&self, name: &str, arm: &str, seed: &str, further: &[&str]) {
        let _ = self.init(name, arm, seed, further).expect_code(0);
        let _ = self.freeze(name).expect_code(0);
    }

    #[track_caller]
    fn freeze(&self, name: &str) -> Finished {
        self.ledger(&["freeze", &format!("{name}/contract.json"), "--keys", "keys"])
    }

    #[track_caller]
    fn add(&self, name: &str, further: &[&str]) -> Finished {
        let run = format!("{name}/run.db");
        self.ledger(&[&["campaign", "add", "campaign.db", &run][..], further].concat())
    }

    #[track_caller]
    fn list(&self) -> Value {
        self.ledger(&["campaign", "list", "campaign.db", "--json"]).expect_code(0).json()
    }
}

/// The example that people start from.
fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../preregistration/example-campaign.json")
}

/// What makes the preset's contract one of the arm `dry`.
const DRY: [&str; 2] = ["--set", "/architecture/dropout=0"];

#[test]
fn the_example_is_frozen_and_its_runs_are_bound() {
    let campaign = Campaign::new();
    let before = campaign.list();
    assert_eq!((before["num_entries"].as_u64(), before["name"].as_str()), (Some(1), Some("example")));
    assert_eq!(before["missing_confirmations"].as_array().map(Vec::len), Some(6));

    campaign.frozen("plain-1", "plain", "1", &[]);
    let contract = std::fs::read(campaign.path().join("plain-1/contract.json")).expect("written");
    let contract: Value = serde_json::from_slice(&contract).expect("JSON");
    assert_eq!(contract["membership"]["campaign"], before["campaign"]);
    for purpose in ["data_order", "dropout", "initialization"] {
        assert_eq!(contract["seeds"][purpose], "1", "{purpose}");
    }
    let preregistration = |name: &str| std::fs::read(campaign.path().join(name)).expect("written");
    assert_eq!(
        preregistration("plain-1/preregistration.json"),
        preregistration("campaign.preregistration.json")
    );

    let added = campaign.add("plain-1", &["--purpose", "confirmation", "--json"]).expect_code(0).json();
    assert_eq!((added["entry"].as_u64(), added["head"]["size"].as_u64()), (Some(1), Some(1)));
    assert_eq!(added["run"]["purpose"], "confirmation");
    // The next run of the arm is numbered by what is bound.
    campaign.frozen("plain-2", "plain", "2", &[]);
    let added = campaign.add("plain-2", &["--purpose", "confirmation", "--json"]).expect_code(0).json();
    assert_eq!(added["run"]["trial"], 2);
    campaign.frozen("dry-1", "dry", "1", &DRY);
    let _ = campaign.add("dry-1", &["--purpose", "confirmation"]).expect_code(0);
    campaign.frozen("tuning", "dry", "9", &[&DRY[..], &["--trial", "2"]].concat());
    let tuned = campaign.add("tuning", &["--purpose", "tuning"]).expect_code(0);
    assert!(tuned.stdout.contains("as    dry tuning trial 2 seed 9 level 0"), "{tuned}");

    let list = campaign.list();
    assert_eq!(list["runs"].as_array().map(Vec::len), Some(4));
    let missing = json!([
        {"arm": "plain", "seed": "3"}, {"arm": "dry", "seed": "2"}, {"arm": "dry", "seed": "3"}
    ]);
    assert_eq!(list["missing_confirmations"], missing);
    let text = campaign.ledger(&["campaign", "list", "campaign.db"]).expect_code(0).stdout;
    assert!(text.contains("tuning 1 of 2, confirmation 1 of 3, positive control 0"), "{text}");
    assert!(text.contains("4 runs in 5 entries, 3 confirmation runs missing"), "{text}");

    // The verbs for any ledger know a campaign's.
    let entries = campaign.ledger(&["list", "campaign.db", "--kind", "campaign.run"]).expect_code(0).stdout;
    assert!(entries.lines().count() == 4 && entries.contains("dry tuning trial 2"), "{entries}");
    let _ = campaign.ledger(&["verify-head", "campaign.db"]).expect_code(0);
}

#[test]
fn each_audit_names_the_other_for_a_ledger_of_its_kind() {
    let campaign = Campaign::new();
    campaign.frozen("plain-1", "plain", "1", &[]);
    let run = campaign.ledger(&["audit", "campaign.db"]);
    run.expect_complaint(2, "campaign.db", &["ledger of a campaign", "ledger campaign audit campaign.db"]);
    let other = campaign.ledger(&["campaign", "audit", "plain-1/run.db"]);
    other.expect_complaint(2, "plain-1/run.db", &["ledger of a run", "ledger audit plain-1/run.db"]);
    let bundle = campaign.ledger(&["bundle", "campaign.db", "campaign.tar.zst"]);
    bundle.expect_complaint(2, "campaign.db", &["campaign ledger", "bundle the run"]);
    // A report by a key that the campaign does not name would count for nobody.
    let _ = campaign.ledger(&["keygen", "--keys", "others"]).expect_code(0);
    let stranger = campaign.ledger(&["campaign", "audit", "campaign.db", "--save", "--keys", "others"]);
    stranger.expect_complaint(2, "campaign.db", &["the preregistration names validator key", "--keys"]);
    assert!(!campaign.path().join("campaign.db.report.dsse.json").exists());
}

/// What a server for one reader answers at a path.
#[track_caller]
fn page(campaign: &Campaign, path: &str) -> String {
    let mut command = command(LEDGER, campaign.path(), &["serve", "campaign.db", "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the server starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line).expect("the server prints its address");
    let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut stream = TcpStream::connect(&address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    child.kill().and_then(|()| child.wait()).expect("the server ends");
    answer
}

#[test]
fn pages_of_a_campaign_show_its_runs_and_the_report_that_was_signed() {
    let campaign = Campaign::new();
    campaign.frozen("plain-1", "plain", "1", &[]);
    let _ = campaign.add("plain-1", &["--purpose", "confirmation"]).expect_code(0);
    let id = campaign.list()["campaign"].as_str().expect("an identifier").to_owned();
    let address = format!("/campaigns/{id}");
    let list = page(&campaign, "/");
    assert!(list.contains(&address) && list.contains("no stored report"), "{list}");
    assert!(page(&campaign, &address).contains("No stored report"));

    let saved = campaign.ledger(&["campaign", "audit", "campaign.db", "--save", "--json"]).json();
    let verdict = format!("verdict-{}", saved["verdict"].as_str().expect("a verdict"));
    let shown = page(&campaign, &address);
    assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
    for text in [verdict.as_str(), "plain-1/run.db", "It saw every entry", "Whose numbers", "Preregistration"]
    {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!page(&campaign, "/").contains("no stored report"));
    let twin = page(&campaign, &format!("{address}.json"));
    let (_, twin) = twin.split_once("\r\n\r\n").expect("a body");
    let twin: Value = serde_json::from_str(twin).expect("JSON");
    assert_eq!((&twin["report"]["report"], &twin["runs"][0]["path"]), (&saved, &json!("plain-1/run.db")));

    // The control: a report that somebody changed, and one of fewer entries.
    campaign.frozen("plain-2", "plain", "2", &[]);
    let _ = campaign.add("plain-2", &["--purpose", "confirmation"]).expect_code(0);
    assert!(page(&campaign, &address).contains("nobody has judged the later ones"));
    flip_byte(&campaign.path().join("campaign.db.report.dsse.json"), 40);
    let shown = page(&campaign, &address);
    assert!(shown.contains("is not usable") && !shown.contains(&verdict), "{shown}");
    assert!(page(&campaign, "/campaigns/none").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_report_that_shows_a_cut_is_not_replaced() {
    let campaign = Campaign::new();
    campaign.frozen("plain-1", "plain", "1", &[]);
    let _ = campaign.add("plain-1", &["--purpose", "confirmation"]).expect_code(0);
    let saved = campaign.ledger(&["campaign", "audit", "campaign.db", "--save"]);
    assert!(saved.stderr.contains("into campaign.db.report.dsse.json"), "{saved}");
    let path = campaign.path().join("campaign.db.report.dsse.json");
    let report = std::fs::read(&path).expect("a report");
    // Its owner cuts it behind the freeze, and signs what is left.
    let mut forgery = Forgery::open(&campaign.path().join("campaign.db")).expect("a ledger");
    forgery.entries.truncate(1);
    let keys = KeyRing::open(&campaign.path().join("keys")).expect("the owner's keys");
    forgery.seal(Some(&keys)).expect("written");
    let _ = campaign.ledger(&["campaign", "audit", "campaign.db"]).expect_code(3);
    for arguments in [
        &["--save"][..],
        &["--save-to", "campaign.db.report.dsse.json"],
        &["--save-to", "./keys/../campaign.db.report.dsse.json"],
    ] {
        let refused = campaign.ledger(&[&["campaign", "audit", "campaign.db"][..], arguments].concat());
        refused.expect_complaint(2, "campaign.db", &["is left as it is", "GC126", "--save-to FILE"]);
        assert!(refused.stdout.starts_with("tampered"), "the verdict is printed: {refused}");
        assert_eq!(std::fs::read(&path).expect("a report"), report);
    }
    let _ = campaign.ledger(&["campaign", "audit", "campaign.db", "--save-to", "new.json"]).expect_code(3);
    let _ = campaign.ledger(&["campaign", "audit", "campaign.db"]).expect_code(3);
}

#[test]
fn a_report_of_a_campaign_that_cannot_be_read_does_not_lie_beside_it() {
    let campaign = Campaign::new();
    past_triggers(&campaign.path().join("campaign.db"), |connection| {
        Ok(connection.execute_batch("UPDATE entries SET entry = x'7b7d' WHERE seq = 0")?)
    })
    .expect("written");
    let audit = audited(&campaign);
    assert_eq!((&audit["campaign"], audit["verdict"].as_str()), (&Value::Null, Some("tampered")));
    for arguments in [&["--save"][..], &["--save-to", "./campaign.db.report.dsse.json"]] {
        let refused = campaign.ledger(&[&["campaign", "audit", "campaign.db"][..], arguments].concat());
        refused.expect_complaint(2, "campaign.db", &["is left as it is", "--save-to FILE"]);
        assert!(!campaign.path().join("campaign.db.report.dsse.json").exists());
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let campaign = Campaign::new();
    campaign.frozen("plain-1", "plain", "1", &[]);
    let before = dump::files(campaign.path()).expect("readable");
    campaign.add("plain-1", &[]).expect_complaint(1, "plain-1/run.db", &["what run", "--purpose"]);
    let late = campaign.add("plain-1", &["--purpose", "tuning", "--late", "no reason"]);
    late.expect_complaint(1, "plain-1/run.db", &["nothing was trained yet", "leave out --late"]);
    let freeze = campaign.ledger(&["campaign", "freeze", "question.json"]);
    freeze.expect_complaint(2, "campaign.db", &["never overwritten", "--output"]);
    let unknown = campaign.init("other", "sgd", "1", &[]);
    unknown.expect_complaint(2, "campaign.db", &["\"sgd\" is no arm", "plain, dry"]);
    let list = campaign.ledger(&["campaign", "list", "plain-1/run.db"]);
    list.expect_complaint(2, "plain-1/run.db", &["not that of a campaign", "ledger campaign freeze"]);
    assert_eq!(before, dump::files(campaign.path()).expect("readable"), "a refusal changed files");

    let _ = campaign.add("plain-1", &["--purpose", "confirmation"]).expect_code(0);
    campaign.frozen("again", "plain", "1", &["--trial", "2"]);
    let again = campaign.add("again", &["--purpose", "confirmation"]);
    again.expect_complaint(1, "again/run.db", &["seed 1 and level 0 is taken", "never replaced"]);
    let changed = campaign.add("plain-1", &["--purpose", "tuning"]);
    changed.expect_complaint(1, "plain-1/run.db", &["stays what it was", "leave out --purpose"]);
    let same = campaign.add("plain-1", &["--json"]).expect_code(0).json();
    assert_eq!(same["entry"], Value::Null);
    assert_eq!(campaign.list()["num_entries"], 2);
}

#[test]
fn a_contract_that_does_not_fit_is_refused_with_its_place() {
    let campaign = Campaign::new();
    // The rung is there, and so is the ladder's end.
    let level = ["--rescue-level", "2"];
    let refused = campaign.init("dry-1", "dry", "1", &[&DRY[..], &level].concat());
    refused.expect_complaint(1, "contract.json", &["/membership/rescue_level", "has 1 levels"]);
    let seeds = campaign.init("seeds", "plain", "1", &["--set", "/seeds/dropout=\"2\""]);
    seeds.expect_complaint(1, "contract.json", &["/seeds", "one seed"]);
    let owner = campaign.init("owner", "plain", "1", &["--keys", "others"]);
    owner.expect_complaint(1, "contract.json", &["/keys/owner/public", "the campaign's owner"]);
}

#[test]
fn a_preregistration_that_decides_nothing_is_refused() {
    let folder = TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
    let text = std::fs::read_to_string(example()).expect("the example");
    let check = |from: &str, to: &str, words: &[&str]| {
        let edited = text.replacen(from, to, 1);
        assert_ne!(edited, text, "{from} is in the example");
        std::fs::write(folder.path().join("question.json"), edited).expect("writable");
        let finished = run(LEDGER, folder.path(), &["campaign", "freeze", "question.json", "--check"]);
        finished.expect_complaint(1, "question.json", words);
    };
    check(
        "\"seeds\": [\"1\", \"2\", \"3\"]",
        "\"seeds\": [\"1\", \"2\", \"2\"]",
        &["/seeds/2", "earlier seed"],
    );
    check("\"num_trials\": 2", "\"num_trials\": 9", &["/arms/1/tuning/unequal_because", "9 of 1280"]);
    check("\"scope\": []", "\"scope\": [\"width\"]", &["/claims/0/scope/0", "not among the axes"]);
    check("\"quality\"", "\"throughput\"", &["/claims/0/dimension", "unknown variant"]);
    check("\"threshold\": 7.2", "\"threshold\": NaN", &["/metric/threshold", "NaN"]);
    let checked =
        run(LEDGER, folder.path(), &["schema", "preregistration", "--check", &example().to_string_lossy()]);
    // Its keys are filled in at the freeze.
    checked.expect_complaint(1, "example-campaign.json", &["/keys"]);
    assert!(!folder.path().join("campaign.db").exists() && !folder.path().join("keys").exists());
}

#[test]
fn a_folder_that_moved_is_the_same_campaign() {
    let campaign = Campaign::new();
    campaign.frozen("plain-1", "plain", "1", &[]);
    let _ = campaign.add("plain-1", &["--purpose", "confirmation"]).expect_code(0);
    let elsewhere = Campaign(TempDir::with_prefix("governed-ledger-").expect("a temporary folder"));
    copy_folder(campaign.path(), elsewhere.path()).expect("copied");
    assert_eq!(elsewhere.list(), campaign.list());
    let same = elsewhere.add("plain-1", &["--json"]).expect_code(0).json();
    assert_eq!((same["entry"].clone(), same["path"].as_str()), (Value::Null, Some("plain-1/run.db")));
}

impl Campaign {
    /// Makes, binds and trains a run, binds what came of it, and has the evaluator
    /// compute it again; its quality.
    #[track_caller]
    fn whole_run(&self, name: &str, (arm, seed, peak): (&str, &str, f64), purpose: &str) -> f64 {
        let peaks: Vec<String> = (0..3).map(|group| format!("/schedule/{group}/shape/peak={peak}")).collect();
        let mut further: Vec<&str> = peaks.iter().flat_map(|peak| ["--set", peak.as_str()]).collect();
        if arm == "dry" {
            further.extend(DRY);
        }
        self.frozen(name, arm, seed, &further);
        let _ = self.add(name, &["--purpose", purpose]).expect_code(0);
        let ledger = format!("{name}/run.db");
        let _ = run(TRAINER, self.path(), &["run", "--ledger", &ledger, "--keys", "keys"]).expect_code(0);
        let added = self.add(name, &["--json"]).expect_code(0).json();
        assert!(added["head"]["size"].as_u64().is_some_and(|size| size > 1), "{added}");
        let _ = run(EVALUATOR, self.path(), &["val", "--ledger", &ledger, "--keys", "keys"]).expect_code(0);
        let selected = self.ledger(&["list", &ledger, "--kind", "candidate.selected", "--json"]);
        selected.expect_code(0).json()["body"]["det"]["value"].as_f64().expect("a value")
    }
}

/// What an audit prints of a campaign.
#[track_caller]
fn audited(campaign: &Campaign) -> Value {
    campaign.ledger(&["campaign", "audit", "campaign.db", "--json"]).json()
}

/// Codes of what an audit found above a note.
#[track_caller]
fn told(audit: &Value) -> BTreeSet<String> {
    above_notes(audit).into_iter().map(|(_, code, _)| code).collect()
}

/// What an audit prints of a copy of the campaign that was changed.
#[track_caller]
fn audited_after(campaign: &Campaign, name: &str, change: fn(&Path) -> anyhow::Result<()>) -> Value {
    let copy = Campaign(TempDir::with_prefix("governed-ledger-").expect("a temporary folder"));
    copy_folder(campaign.path(), copy.path()).expect("copied");
    change(copy.path()).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    audited(&copy)
}

/// A change of the campaign that is signed again is told by its rule and by those
/// that are named beside it, and the record or a claim is no longer what it was.
fn check_mutation(campaign: &Campaign, honest: &Value, mutation: &CampaignMutation) {
    let CampaignMutation { change, code, name, others } = *mutation;
    let audit = audited_after(campaign, name, change);
    let expected: BTreeSet<String> =
        std::iter::once(&code).chain(others).map(|code| (*code).to_owned()).collect();
    assert_eq!(told(&audit), expected, "{code}, {name}: {:#}", audit["findings"]);
    let claims = |audit: &Value| audit["claims"].as_array().cloned().expect("claims");
    let before = claims(honest);
    // One that is not supported, for a reason that there was not.
    let is_denied = |claim: &Value| {
        claim["outcome"] != "supported" && before.iter().all(|other| other["reasons"] != claim["reasons"])
    };
    let is_as_before = audit["verdict"] == honest["verdict"] && !claims(&audit).iter().any(is_denied);
    assert!(!is_as_before, "{code}, {name}: neither the record nor a claim is denied: {audit:#}");
}

/// Every mutation of the campaign, and the control: of one that is frozen again and
/// asks the same, nothing is told and every claim is decided as before.
fn check_mutations(campaign: &Campaign, honest: &Value) {
    assert_eq!(told(honest), BTreeSet::new(), "what was in doubt already shows nothing");
    let renamed = audited_after(campaign, "another name", campaigns::rename);
    assert_ne!(renamed["campaign"], honest["campaign"]);
    assert_eq!(told(&renamed), BTreeSet::new(), "{:#}", renamed["findings"]);
    for member in ["claims", "verdict", "verdicts"] {
        assert_eq!(renamed[member], honest[member], "{member}");
    }
    let mutations = campaigns::mutations();
    std::thread::scope(|scope| {
        for part in mutations.chunks(mutations.len().div_ceil(NUM_JOBS)) {
            scope.spawn(move || part.iter().for_each(|mutation| check_mutation(campaign, honest, mutation)));
        }
    });
}

/// Two trials, three confirmations of the better one, for each arm, and a
/// positive control: everything that the example asks for.
#[test]
fn the_example_is_run_as_a_whole_and_every_claim_gets_an_outcome() {
    let campaign = Campaign::new();
    for arm in ["plain", "dry"] {
        let trial = |peak: f64| campaign.whole_run(&format!("{arm}-{peak}"), (arm, "9", peak), "tuning");
        let peak = if trial(0.003) <= trial(0.01) { 0.003 } else { 0.01 };
        for seed in ["1", "2", "3"] {
            campaign.whole_run(&format!("{arm}-{seed}"), (arm, seed, peak), "confirmation");
        }
        if arm == "dry" {
            campaign.whole_run("control", (arm, "8", peak), "positive_control");
        }
    }
    assert_eq!(campaign.list()["missing_confirmations"], json!([]));
    let audit = campaign.ledger(&["campaign", "audit", "campaign.db", "--json"]).expect_code(0).json();
    assert_eq!(
        (audit["verdict"].as_str(), audit["verdicts"]["accepted"].as_u64()),
        (Some("accepted"), Some(11))
    );
    let claims = audit["claims"].as_array().expect("claims");
    assert_eq!(claims.len(), 2);
    for claim in claims {
        assert_ne!(claim["outcome"], "blocked", "{claim}");
        assert_eq!(claim["basis"], "evaluator", "{claim}");
        assert!(claim["reasons"].as_array().is_some_and(|reasons| !reasons.is_empty()), "{claim}");
    }
    check_mutations(&campaign, &audit);
    // The signed report is the one that was printed, by the validator's key.
    let saved = campaign.ledger(&["campaign", "audit", "campaign.db", "--save", "--json"]).expect_code(0);
    let path = campaign.path().join("campaign.db.report.dsse.json");
    let envelope: Envelope =
        serde_json::from_slice(&std::fs::read(path).expect("saved")).expect("an envelope");
    let public = std::fs::read(campaign.path().join("keys/validator.pub")).expect("a key");
    let public: Value = serde_json::from_slice(&public).expect("JSON");
    let public = public["public"].as_str().expect("hex");
    let payload =
        ledger::dsse::verify(&envelope, CAMPAIGN_REPORT_PAYLOAD_TYPE, public).expect("its signature");
    let payload: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((&payload, &saved.json()), (&audit, &audit));
    // A result that is bound no more is missed: the run's folder goes.
    std::fs::rename(campaign.path().join("dry-2"), campaign.path().join(".hidden")).expect("renamed");
    let audit = campaign.ledger(&["campaign", "audit", "campaign.db"]);
    assert_ne!(audit.code, 0, "{audit}");
}
