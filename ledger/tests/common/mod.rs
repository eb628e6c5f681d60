//! What the boundary tests share: the golden contract, its published keys, and
//! a fresh ledger in a temporary folder.

#![allow(dead_code, reason = "each test file uses its own part of this module")]
#![allow(unreachable_pub, reason = "a test module has no crate to be public in")]

use std::path::{Path, PathBuf};

use ledger::create::{Created, FrozenArtifact, create_run_ledger};
use ledger::keys::{KeyPair, Role};
use ledger::recorder::{Record, Recorder};
use schemas::body::{Body, Counters, Credit, Halves, HeartbeatDet, HeartbeatObs, StepDet, StepObs};
use schemas::digest::{Digest, decode_hex};
use schemas::ids::AttemptId;
use schemas::number::Float;

/// Text of a golden file.
pub fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A golden file as JSON.
pub fn golden_json(name: &str) -> serde_json::Value {
    serde_json::from_str(&golden(name)).expect("golden files are JSON")
}

/// The key of a role in the golden contract (RFC 8032, section 7.1).
pub fn key(role: Role) -> KeyPair {
    let seed = match role {
        Role::Owner => "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        Role::Trainer => "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        Role::Qualifier => "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        Role::Validator | Role::Witness => "f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5",
    };
    let seed: [u8; 32] = decode_hex(seed).and_then(|seed| seed.try_into().ok()).expect("32 bytes");
    KeyPair::from_seed(role, &seed, Digest::sha256([0; 32]))
}

/// A folder with a freshly frozen `run.db`.
pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub created: Created,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let artifacts = [
            FrozenArtifact { pointer: "/update/card".to_owned(), bytes: b"{\"card\":1}".to_vec() },
            FrozenArtifact { pointer: "/parameters".to_owned(), bytes: vec![7; 100_000] },
        ];
        let contract = golden("contract.canonical.json");
        let created = create_run_ledger(
            &folder.path().join("run.db"),
            contract.as_bytes(),
            &artifacts,
            &key(Role::Owner),
            "test 0",
        )
        .expect("a new ledger");
        Self { folder, created }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("run.db")
    }

    pub fn head_path(&self) -> PathBuf {
        self.folder.path().join("run.db.head")
    }

    pub fn open(&self) -> Recorder {
        Recorder::open(&self.path(), key(Role::Trainer)).expect("a ledger that may be written")
    }

    /// An ordinary SQLite connection, as a stranger would make it.
    pub fn sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("an SQLite file")
    }

    /// Drops every trigger, as somebody who means harm would.
    pub fn drop_triggers(&self) {
        self.sqlite()
            .execute_batch(
                "DROP TRIGGER entries_insert; DROP TRIGGER entries_update; DROP TRIGGER entries_delete;
                 DROP TRIGGER heads_insert; DROP TRIGGER heads_update; DROP TRIGGER heads_delete;",
            )
            .expect("triggers can be dropped");
    }

    /// Runs statements without the triggers and puts the triggers back, so that
    /// the schema is that of an honest ledger.
    pub fn tamper(&self, statements: &str) {
        let sqlite = self.sqlite();
        let triggers: Vec<String> = {
            let mut statement =
                sqlite.prepare("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").expect("a schema");
            let rows = statement.query_map([], |row| row.get(0)).expect("triggers");
            rows.collect::<Result<_, _>>().expect("their text")
        };
        assert_eq!(triggers.len(), 9);
        self.drop_triggers();
        sqlite.execute_batch(statements).expect("the change itself");
        for trigger in triggers.iter().filter(|text| !text.contains("artifacts")) {
            sqlite.execute_batch(trigger).expect("the trigger comes back");
        }
        sqlite.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("folded in");
    }
}

/// A small record that says a number.
pub fn heartbeat(number: u64) -> Record {
    let det = HeartbeatDet { phase: format!("phase {number}") };
    let obs = HeartbeatObs { resident_bytes: number };
    Record::new(Body::Heartbeat(Box::new(Halves { det, obs }))).attempt(AttemptId(1))
}

/// A step with a loss.
pub fn step(number: u64, loss: f64) -> Record {
    let credit = Credit::Backpropagation {
        gradient_norm: Float(1.0),
        loss: Float(loss),
        num_microbatches: 2,
        num_tokens: 512,
    };
    let det = StepDet {
        counters: Counters { evaluations: 0, examples: 8 * number, tokens: 512 * number },
        credit,
        draws: Vec::new(),
        overflow: None,
        state: None,
        state_root: None,
        updates: Vec::new(),
    };
    let obs = StepObs {
        bytes_sent: 0,
        duration_us: 10,
        recording_us: 0,
        replicas: Vec::new(),
        resident_bytes: None,
        shares: Vec::new(),
    };
    Record::new(Body::Step(Box::new(Halves { det, obs }))).attempt(AttemptId(1)).step(number)
}
