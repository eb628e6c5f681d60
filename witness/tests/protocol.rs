//! The witness over real HTTP: every answer of the specification, and that no two
//! requests can be given cosignatures of two histories.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use ledger::keys::{KeyPair, Role};
use ledger::note::{self, TreeHead};
use ledger::tree::{Hash, consistency_proof, leaf_hash, root_of};
use schemas::digest::Digest;
use tempfile::TempDir;
use witness::cosignature;
use witness::policy::{Policy, Team};
use witness::request::{AddCheckpoint, MAX_BODY_BYTES};
use witness::server::{Witness, serve};
use witness::state::{Answer, State, StateError};
use witness::verifier_key::{SignatureKind, VerifierKey};

const NAME: &str = "witness.example/w1";
const ORIGIN: &str = "governed-ledger/run/0123456789abcdef-0123456789abcdef";

fn key(role: Role) -> KeyPair {
    let place = Role::ALL.iter().position(|known| *known == role).expect("a role");
    let seed = [u8::try_from(place).expect("few roles") + 1; 32];
    KeyPair::from_seed(role, &seed, Digest::sha256([0; 32]))
}

/// Leaves of a history; those of another one differ from `from` on.
fn leaves(size: usize, other_from: usize) -> Vec<Hash> {
    (0..size).map(|index| leaf_hash(format!("{index} {}", index >= other_from).as_bytes())).collect()
}

const HONEST: usize = usize::MAX;

fn signed(leaves: &[Hash], signer: Role) -> String {
    TreeHead { origin: ORIGIN.to_owned(), size: leaves.len() as u64, root: root_of(leaves) }
        .sign(&key(signer))
}

/// A body: from `old` leaves to all, signed as an audit expects it.
fn body(leaves: &[Hash], old: usize) -> String {
    let proof = consistency_proof(leaves, old).expect("not larger");
    let signer = if leaves.len() <= 1 { Role::Owner } else { Role::Trainer };
    AddCheckpoint::body(old as u64, &proof, &signed(leaves, signer))
}

fn policy() -> Policy {
    let keys: BTreeMap<String, String> =
        [Role::Owner, Role::Trainer].map(|role| (role.name().to_owned(), key(role).public_hex())).into();
    let log =
        VerifierKey::from_hex(SignatureKind::Log, "example.com/log", &key(Role::Validator).public_hex());
    Policy::new(vec![log.expect("a key")], vec![Team::new(keys).expect("keys")]).expect("a policy")
}

fn vkey() -> VerifierKey {
    let public = key(Role::Witness).public_bytes();
    VerifierKey { kind: SignatureKind::Witness, name: NAME.to_owned(), public }
}

fn new_state(folder: &Path) -> State {
    State::create(&folder.join("witness.db"), NAME, &key(Role::Witness).public_hex()).expect("a new state")
}

/// A server on a thread of its own.
struct Server {
    address: SocketAddr,
    folder: TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let witness = Witness::new(new_state(folder.path()), key(Role::Witness), policy()).expect("its key");
        let (ready, address) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
            let listen = "127.0.0.1:0".parse().expect("an address");
            let served = runtime.block_on(serve(
                listen,
                witness,
                |address| ready.send(address).expect("somebody waits"),
                async {
                    let _ = stopped.await;
                },
            ));
            served.expect("served to its end");
        });
        let address = address.recv().expect("it listens");
        Self { address, folder, stop: Some(stop), thread: Some(thread) }
    }

    /// Status, type and text of an answer.
    fn post(&self, body: &str) -> (u16, String, String) {
        let url = format!("http://{}/add-checkpoint", self.address);
        let mut response = agent().post(&url).send(body.as_bytes()).expect("an answer");
        let kind =
            response.headers().get("content-type").map(|kind| kind.to_str().expect("ASCII").to_owned());
        let text = response.body_mut().read_to_string().expect("text");
        (response.status().as_u16(), kind.unwrap_or_default(), text)
    }

    /// Status and text of a page.
    fn get(&self, page: &str) -> (u16, String) {
        let url = format!("http://{}/{page}", self.address);
        let mut response = agent().get(&url).call().expect("an answer");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("text"))
    }

    fn logs(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("logs").1).expect("JSON")
    }
}

/// Without a proxy from the environment.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent()
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[track_caller]
fn check_cosigned(answer: (u16, String, String), note: &str) {
    let (status, kind, line) = answer;
    assert_eq!((status, kind.as_str()), (200, "text/plain; charset=utf-8"), "{line}");
    let cosigned = note::parse(&format!("{note}{line}")).expect("a note with one line more");
    assert_eq!(cosigned.signatures.len(), 2);
    let time_s = cosignature::verify(&cosigned, &vkey()).expect("it holds").expect("it is there");
    assert!(time_s.abs_diff(cosignature::now_s()) < 60);
}

#[test]
fn a_growing_history_is_cosigned_from_the_owner_s_head_to_the_trainer_s() {
    let server = Server::start();
    let mut old = 0;
    for size in [1, 2, 3, 7, 8, 130] {
        let leaves = leaves(size, HONEST);
        let signer = if size == 1 { Role::Owner } else { Role::Trainer };
        check_cosigned(server.post(&body(&leaves, old)), &signed(&leaves, signer));
        // The last one is cosigned again for whoever lost the answer.
        check_cosigned(server.post(&body(&leaves, size)), &signed(&leaves, signer));
        old = size;
    }
    let logs = server.logs();
    assert_eq!(logs["logs"][0]["size"], 130);
    assert_eq!(logs["refused"].as_array().map(Vec::len), Some(0));
    let (status, text) = server.get(&format!("cosigned/{ORIGIN}"));
    assert_eq!((status, ledger::head_file::split_notes(&text).len()), (200, 6), "each size once");
    assert_eq!(server.get("cosigned/governed-ledger/run/x-y").0, 404);
}

/// Each status with its control: the same request without the flaw is cosigned.
#[test]
fn what_is_not_so_is_answered_as_the_specification_has_it() {
    let server = Server::start();
    let ten = leaves(10, HONEST);
    check_cosigned(server.post(&body(&ten, 0)), &signed(&ten, Role::Trainer));
    let twelve = leaves(12, HONEST);
    let good = body(&twelve, 10);
    let refused = |body: &str| {
        let (status, kind, text) = server.post(body);
        if status == 409 {
            assert_eq!((kind.as_str(), text.as_str()), ("text/x.tlog.size", "10\n"));
        } else {
            assert!(!text.contains('\u{2014}'), "a signature line with {status}");
        }
        status
    };
    // 400: the body, and an old size above that of the head.
    assert_eq!(refused(""), 400);
    assert_eq!(refused(&good.replace("old 10", "old 010")), 400);
    assert_eq!(refused(&AddCheckpoint::body(13, &[], &signed(&twelve, Role::Trainer))), 400);
    // 403: no signature by a key that may sign; the owner signs the freeze alone.
    assert_eq!(refused(&AddCheckpoint::body(10, &[], &signed(&twelve, Role::Owner))), 403);
    assert_eq!(refused(&AddCheckpoint::body(10, &[], &signed(&twelve, Role::Qualifier))), 403);
    let altered = good.replace("\n12\n", "\n13\n");
    assert_eq!(refused(&altered), 403);
    // 404: an origin of nobody.
    assert_eq!(refused(&good.replace("governed-ledger/run", "governed-ledger/walk")), 404);
    // 409: another size than the last one, in either direction, and another root.
    assert_eq!(refused(&body(&twelve, 9)), 409);
    assert_eq!(refused(&body(&twelve, 11)), 409);
    assert_eq!(refused(&body(&twelve, 0)), 409);
    assert_eq!(refused(&body(&leaves(9, HONEST), 4)), 409, "rollback");
    assert_eq!(refused(&body(&leaves(10, 4), 10)), 409, "same size, other root");
    // 413: more than any request needs.
    let padding = "x".repeat(MAX_BODY_BYTES + 1 - good.len());
    assert_eq!(server.post(&format!("{good}{padding}")).0, 413);
    // 422: no proof, a proof of something else, a proof where there is nothing to prove.
    assert_eq!(refused(&body(&leaves(12, 4), 10)), 422, "split view");
    assert_eq!(refused(&AddCheckpoint::body(10, &[], &signed(&twelve, Role::Trainer))), 422);
    let mut proof = consistency_proof(&twelve, 10).expect("not larger");
    proof.push([0; 32]);
    assert_eq!(refused(&AddCheckpoint::body(10, &proof, &signed(&twelve, Role::Trainer))), 422);
    assert_eq!(refused(&AddCheckpoint::body(10, &proof, &signed(&ten, Role::Trainer))), 422);
    // Nothing of it moved the witness.
    let logs = server.logs();
    assert_eq!(logs["logs"][0]["size"], 10);
    let reasons: Vec<&str> = logs["refused"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|head| head["reason"].as_str())
        .collect();
    assert!(reasons.iter().any(|reason| reason.contains("another root")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("smaller")), "{reasons:?}");
    check_cosigned(server.post(&good), &signed(&twelve, Role::Trainer));
}

#[test]
fn a_first_head_needs_no_proof_and_may_have_none() {
    let server = Server::start();
    let five = leaves(5, HONEST);
    let with_proof = AddCheckpoint::body(0, &[[1; 32]], &signed(&five, Role::Trainer));
    assert_eq!(server.post(&with_proof).0, 422);
    check_cosigned(server.post(&body(&five, 0)), &signed(&five, Role::Trainer));
}

/// An ordinary C2SP log: known by its verifier key, whatever its sizes.
#[test]
fn a_log_by_its_own_key_is_cosigned_too() {
    let server = Server::start();
    let origin = "example.com/log".to_owned();
    let head = TreeHead { origin, size: 3, root: root_of(&leaves(3, HONEST)) };
    let note = head.sign(&key(Role::Validator));
    check_cosigned(server.post(&AddCheckpoint::body(0, &[], &note)), &note);
    let other = head.sign(&key(Role::Trainer));
    assert_eq!(server.post(&AddCheckpoint::body(3, &[], &other)).0, 403);
}

/// Two histories of one size, each offered by several clients at once, over HTTP
/// and beside it by another process's connection to the same state: one of them
/// is cosigned, however often, and the other never.
#[test]
fn concurrent_requests_cannot_fork() {
    let server = Server::start();
    let base = leaves(4, HONEST);
    check_cosigned(server.post(&body(&base, 0)), &signed(&base, Role::Trainer));
    let histories = [leaves(9, HONEST), leaves(9, 4)];
    assert_ne!(root_of(&histories[0]), root_of(&histories[1]));
    let bodies: Vec<String> = histories.iter().map(|history| body(history, 4)).collect();
    let won = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for turn in 0..8usize {
            let (server, bodies, won) = (&server, &bodies, &won);
            scope.spawn(move || {
                let which = turn % 2;
                if turn < 6 {
                    if server.post(&bodies[which]).0 == 200 {
                        won[which].fetch_add(1, Ordering::Relaxed);
                    }
                } else {
                    let mut state =
                        State::open(&server.folder.path().join("witness.db")).expect("a second one");
                    let answer = state
                        .add_checkpoint(
                            bodies[which].as_bytes(),
                            &policy(),
                            &key(Role::Witness),
                            cosignature::now_s(),
                        )
                        .expect("decided");
                    if matches!(answer, Answer::Cosigned(_)) {
                        won[which].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let won = won.map(AtomicUsize::into_inner);
    assert_eq!(won.iter().filter(|count| **count > 0).count(), 1, "{won:?}");
    assert_eq!(server.logs()["logs"][0]["size"], 9);
}

#[test]
fn a_state_remembers_and_is_nobody_else_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("witness.db");
    let ten = leaves(10, HONEST);
    let mut state = new_state(folder.path());
    let add = |state: &mut State, body: &str, now_s| {
        state.add_checkpoint(body.as_bytes(), &policy(), &key(Role::Witness), now_s)
    };
    assert!(matches!(add(&mut state, &body(&ten, 0), 5_000), Ok(Answer::Cosigned(_))));
    drop(state);
    assert!(matches!(State::create(&path, NAME, "00"), Err(StateError::Exists { .. })));
    assert!(matches!(State::open(&folder.path().join("none")), Err(StateError::Missing { .. })));
    std::fs::write(folder.path().join("text"), "not a database, and longer than a header of one would be")
        .expect("written");
    assert!(matches!(State::open(&folder.path().join("text")), Err(StateError::NotAState { .. })));
    let mut state = State::open(&path).expect("the state");
    assert_eq!(add(&mut state, &body(&leaves(12, 3), 10), 5_001).expect("decided"), Answer::BadProof);
    // A clock that was corrected a little is none that was set back.
    let twelve = body(&leaves(12, HONEST), 10);
    assert!(matches!(add(&mut state, &twelve, 4_000), Err(StateError::Clock { .. })));
    let Ok(Answer::Cosigned(line)) = add(&mut state, &twelve, 4_995) else { panic!("a small step back") };
    let note = note::parse(&format!("{}{line}", signed(&leaves(12, HONEST), Role::Trainer))).expect("a note");
    assert_eq!(cosignature::verify(&note, &vkey()), Ok(Some(5_000)), "time does not go back");
    let other = key(Role::Validator);
    let answer = state.add_checkpoint(twelve.as_bytes(), &policy(), &other, 6_000);
    assert!(matches!(answer, Err(StateError::OtherWitness { .. })));
    // Under other keys of the same origin the log is not known any more.
    let keys = BTreeMap::from([
        ("owner".to_owned(), key(Role::Validator).public_hex()),
        ("trainer".to_owned(), key(Role::Qualifier).public_hex()),
    ]);
    let others = Policy::new(Vec::new(), vec![Team::new(keys).expect("keys")]).expect("a policy");
    let thirteen = leaves(13, HONEST);
    let proof = consistency_proof(&thirteen, 12).expect("not larger");
    let taken = AddCheckpoint::body(12, &proof, &signed(&thirteen, Role::Qualifier));
    let answer = state.add_checkpoint(taken.as_bytes(), &others, &key(Role::Witness), 6_000);
    assert_eq!(answer.expect("decided"), Answer::UnknownLog);
}

/// What the code never does, the database refuses too.
#[test]
fn the_layout_refuses_what_a_witness_never_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut state = new_state(folder.path());
    let ten = body(&leaves(10, HONEST), 0);
    let answer = state.add_checkpoint(ten.as_bytes(), &policy(), &key(Role::Witness), 5_000);
    assert!(matches!(answer, Ok(Answer::Cosigned(_))));
    let connection = rusqlite::Connection::open(folder.path().join("witness.db")).expect("SQLite");
    for statement in [
        "UPDATE logs SET size = 9",
        "UPDATE logs SET root = zeroblob(32)",
        "UPDATE logs SET keys = 'other'",
        "UPDATE logs SET time = 1",
        "DELETE FROM logs",
        "UPDATE cosigned SET note = ''",
        "DELETE FROM cosigned",
    ] {
        assert!(connection.execute_batch(statement).is_err(), "{statement}");
    }
    connection.execute_batch("UPDATE logs SET size = 11").expect("the control: a log grows");
}
