//! Campaigns on disk for tests: a ledger of its own, and the ledgers of its runs
//! in folders below it.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer;
use rusqlite::{Connection, params};
use schemas::body::{Body, Credit, Halves};
use schemas::campaign::report::CampaignReport;
use schemas::campaign::*;
use schemas::digest::{Digest, decode_hex};
use schemas::dsse::{EnvelopeSignature, PREREGISTRATION_PAYLOAD_TYPE};
use schemas::entry::{Entry, Header, LedgerKind};
use schemas::ids::{IdempotencyKey, RunId};
use schemas::number::{DecimalU64, Float};
use sha2::Digest as _;
use tempfile::TempDir;

use super::fixture::{BASELINE, PROPOSED, SEEDS, frozen_text};
use super::{CampaignRequest, audit};
use crate::dsse::pre_authentication_encoding;
use crate::ed25519::key_id;
use crate::fixture::{Fixture, StoredRun, json, signed_note, signing_key};
use crate::note::Note;
use crate::tree::{Frontier, leaf_hash};

/// Nonce of the campaign's freeze, as in the runs' contracts.
const NONCE: &str = "fedcba9876543210";
/// Role of the owner among the fixture's keys.
const OWNER: u8 = 1;
/// Time of the freeze: before the fixture's runs begin.
const FROZEN_US: u64 = 1_794_999_999_000_000;

/// A campaign's ledger, with the folder that everything lies in.
pub(crate) struct StoredCampaign {
    pub(crate) folder: TempDir,
    pub(crate) prereg: Preregistration,
    pub(crate) entries: Vec<Entry>,
}

/// One run of it on disk.
pub(crate) struct BoundRun {
    pub(crate) name: String,
    pub(crate) det: CampaignRunDet,
    /// Its heads by size.
    pub(crate) notes: Vec<(u64, String)>,
}

impl StoredCampaign {
    /// A frozen campaign without runs, not written yet.
    pub(crate) fn freeze(prereg: Preregistration) -> Self {
        let text = frozen_text(&prereg);
        let message = pre_authentication_encoding(PREREGISTRATION_PAYLOAD_TYPE, text.as_bytes());
        let keyid = key_id("owner", &prereg.keys.owner.public).expect("hex");
        let sig = STANDARD.encode(signing_key(OWNER).sign(&message).to_bytes());
        let det = CampaignFrozenDet {
            digest: Digest::sha256(sha2::Sha256::digest(text.as_bytes()).into()),
            preregistration: text,
            signature: EnvelopeSignature { keyid: keyid.0, sig },
        };
        let obs = CampaignFrozenObs { nonce: NONCE.to_owned(), tool: "fixture".to_owned() };
        let folder = TempDir::new().expect("a temporary folder");
        let mut campaign = Self { folder, prereg, entries: Vec::new() };
        campaign.push(Body::CampaignFrozen(Box::new(Halves { det, obs })));
        campaign
    }

    /// Its identifier.
    pub(crate) fn id(&self) -> RunId {
        let digest = Digest::sha256(sha2::Sha256::digest(frozen_text(&self.prereg).as_bytes()).into());
        RunId(format!("{}-{NONCE}", &digest.hex()[..16]))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("campaign.db")
    }

    pub(crate) fn push(&mut self, body: Body) {
        let index = self.entries.len() as u64;
        let header = Header {
            actor: key_id("owner", &self.prereg.keys.owner.public).expect("hex"),
            attempt: None,
            extensions: Vec::new(),
            idem: IdempotencyKey(format!("{index:032x}")),
            learner: None,
            ledger: LedgerKind::Campaign,
            origin: None,
            run: self.id(),
            segment: None,
            step: None,
            worker: None,
        };
        self.entries.push(Entry { body, header, index, time_us: FROZEN_US + index * 1000 });
    }

    /// Stores a run below the campaign's folder, with losses of its own.
    pub(crate) fn store(&self, name: &str, mut fixture: Fixture, det: CampaignRunDet) -> BoundRun {
        for entry in &mut fixture.entries {
            if let Body::Step(halves) = &mut entry.body
                && let Credit::Backpropagation { loss, .. } = &mut halves.det.credit
            {
                // A function of arm, trial and seed, as no two runs have the same.
                let own = u32::try_from(det.seed.0).expect("a small seed") + det.trial * 100;
                *loss = Float(loss.0 + f64::from(own + u32::from(det.arm == PROPOSED)) * 1e-6);
            }
        }
        let stored = StoredRun::new(fixture);
        let to = self.folder.path().join(name);
        std::fs::rename(stored.folder(), to).expect("one file system");
        BoundRun { name: name.to_owned(), det, notes: stored.notes.clone() }
    }

    /// Binds a run by its n-th head.
    pub(crate) fn bind(&mut self, run: &BoundRun, n: usize, late: Option<&str>) {
        let obs = CampaignRunObs {
            head: run.notes[n].1.clone(),
            late: late.map(str::to_owned),
            path: format!("{}/run.db", run.name),
        };
        self.push(Body::CampaignRun(Box::new(Halves { det: run.det.clone(), obs })));
    }

    /// Binds a run before it began, and with its last head.
    pub(crate) fn bind_both(&mut self, run: &BoundRun) {
        self.bind(run, 0, None);
        self.bind(run, run.notes.len() - 1, None);
    }

    /// Writes database and head file, with a head behind every entry.
    pub(crate) fn write(&self) {
        self.write_covered(self.entries.len());
    }

    /// The same with heads behind the first so many entries.
    pub(crate) fn write_covered(&self, num_covered: usize) {
        let connection = Connection::open(self.path()).expect("the folder is writable");
        connection.execute_batch(include_str!("../../../migrations/0001_ledger.sql")).expect("layout 1");
        let origin = format!("governed-ledger/campaign/{}", self.id());
        let mut frontier = Frontier::new();
        let mut heads = String::new();
        for (place, entry) in self.entries.iter().enumerate() {
            let bytes = json(entry);
            let idem = decode_hex(entry.header.idem.as_str()).expect("hex");
            let seq = i64::try_from(place).expect("small");
            connection
                .execute(
                    "INSERT INTO entries (seq, idem, entry, leaf) VALUES (?1, ?2, ?3, ?4)",
                    params![seq, idem, bytes, leaf_hash(&bytes)],
                )
                .expect("a new row");
            frontier.append(leaf_hash(&bytes));
            if place < num_covered {
                let note = signed_note(&origin, frontier.size(), frontier.root(), OWNER);
                connection
                    .execute("INSERT INTO heads (size, note) VALUES (?1, ?2)", params![seq + 1, note])
                    .expect("grows");
                heads.push_str(&format!("{note}\n"));
            }
        }
        std::fs::write(self.folder.path().join("campaign.db.head"), heads).expect("writable");
    }

    /// Changes a database below the folder without its triggers.
    pub(crate) fn tamper(&self, name: &str, sql: &str) {
        tamper(&self.folder.path().join(name), sql);
    }

    pub(crate) fn audit(&self) -> CampaignReport {
        let request = CampaignRequest { ledger: self.path(), head: None };
        audit(&request, &mut |_| {}).expect("the audit can look")
    }
}

fn tamper(path: &Path, sql: &str) {
    let connection = Connection::open(path).expect("it is there");
    let triggers: Vec<(String, String)> = {
        let query = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'";
        let mut statement = connection.prepare(query).expect("a query");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
        rows.collect::<Result<_, _>>().expect("readable")
    };
    for (name, _) in &triggers {
        connection.execute_batch(&format!("DROP TRIGGER {name}")).expect("a trigger");
    }
    connection.execute_batch(sql).expect("the mutation acts");
    for (_, sql) in &triggers {
        connection.execute_batch(sql).expect("a trigger");
    }
}

/// A preregistration of two arms without tuning, whose runs the fixture gives.
pub(crate) fn small_preregistration() -> Preregistration {
    let mut prereg = super::fixture::preregistration();
    prereg.arms.truncate(2);
    for arm in &mut prereg.arms {
        arm.tuning.num_trials = 0;
        arm.tuning.price_tokens = 0;
        arm.tuning.pointers.clear();
        arm.tuning.search_space.clear();
    }
    // One card for both; they differ in their schedules.
    prereg.arms[1].card = prereg.arms[0].card;
    prereg.arms[1].declared[0].pointer = ContractPointer("/schedule".to_owned());
    prereg.axes.clear();
    prereg.claims.truncate(1);
    prereg.claims[0].kind = ClaimKind::NotWorse;
    prereg.claims[0].scope.clear();
    prereg
}

/// Who a confirmation run is.
pub(crate) fn det_of(fixture: &Fixture, arm: &str, seed: u64, trial: u32) -> CampaignRunDet {
    CampaignRunDet {
        arm: arm.to_owned(),
        contract: fixture.frozen.digest,
        owner: fixture.frozen.contract.keys.owner.public.clone(),
        purpose: RunPurpose::Confirmation,
        rescue_level: 0,
        run: fixture.frozen.run.clone(),
        seed: DecimalU64(seed),
        trial,
    }
}

/// Arms and seeds of the small campaign, with the trial of each.
pub(crate) fn plans() -> Vec<(&'static str, u64, u32)> {
    let of_arm = |arm| SEEDS.into_iter().zip(1..).map(move |(seed, trial)| (arm, seed, trial));
    of_arm(BASELINE).chain(of_arm(PROPOSED)).collect()
}

/// The size of a head.
pub(crate) fn size_of(note: &str) -> u64 {
    Note::parse(note.as_bytes()).expect("a note").size
}
