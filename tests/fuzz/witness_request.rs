//! Bodies of `add-checkpoint`, which anybody may send to a witness: the parser, and
//! what a witness that knows one team decides over them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ledger::keys::{KeyPair, Role};
use schemas::digest::Digest;
use validator::cosignature::Cosigner;
use validator::ed25519::PublicKey;
use validator::note::Note;
use witness::cosigned_file::with_cosignature;
use witness::policy::{Policy, Team};
use witness::request::AddCheckpoint;
use witness::state::{Answer, State};

use super::memory::{self, bounded};
use super::run;
use super::{corpus, guided};

/// Lines are copied a few times, and the head once more for its signers.
const FACTOR: usize = 64;

/// Name of the witness.
const NAME: &str = "witness.example/fuzz";

/// What its clock says, in seconds: after the corpus was made.
const NOW_S: u64 = 1_900_000_000;

/// Keys of the run that the corpus is of.
const OWNER: &str = "b9e880d494ef85b91bcf205e245eee898d9729bd3025cbf4c6ae3e9c095bcd6f";
const TRAINER: &str = "d1222683e2db530ce963250aea88eb8af47137cd1f0ef5b3b77418f037bc4d78";

/// A witness that goes on from one input to the next, as one that serves does.
struct Witness {
    cosigner: Cosigner,
    key: KeyPair,
    policy: Policy,
    state: Mutex<State>,
    trainer: PublicKey,
}

impl Witness {
    fn new(folder: &std::path::Path) -> Self {
        let key = KeyPair::from_seed(Role::Witness, &[7; 32], Digest::sha256([0; 32]));
        let named = [("owner", OWNER), ("trainer", TRAINER)];
        let keys: BTreeMap<String, String> =
            named.into_iter().map(|(role, public)| (role.to_owned(), public.to_owned())).collect();
        let team = Team::new(keys).expect("a team");
        let state = State::create(&folder.join("witness.db"), NAME, &key.public_hex()).expect("a state");
        Self {
            cosigner: Cosigner::new(NAME, &key.public_hex()).expect("a witness"),
            policy: Policy::new(Vec::new(), vec![team]).expect("a policy"),
            state: Mutex::new(state),
            trainer: PublicKey::from_hex(TRAINER).expect("a key"),
            key,
        }
    }

    fn answer(&self, body: &[u8]) -> Answer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = state.add_checkpoint(body, &self.policy, &self.key, NOW_S);
        answer.expect("no body keeps a witness from answering")
    }
}

fn property(witness: &Witness, bytes: &[u8]) -> bool {
    let request = bounded(bytes, FACTOR, || AddCheckpoint::parse(bytes)).ok();
    let answer = bounded(bytes, FACTOR, || witness.answer(bytes));
    let Some(request) = request else {
        assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
        return false;
    };
    let written = AddCheckpoint::body(request.old_size, &request.proof, &request.note);
    assert!(written.as_bytes() == bytes, "read and written again it is another body");
    let head = &request.parsed.head;
    let note = Note::parse(request.note.as_bytes()).expect("a head for the validator too");
    assert_eq!((&note.origin, note.size, note.root), (&head.origin, head.size, head.root));
    match answer {
        Answer::Cosigned(line) => {
            // It holds for who audits, and so does the signature of who trained.
            let cosigned = with_cosignature(&request.parsed, TRAINER, &line);
            let note = Note::parse(cosigned.as_bytes()).expect("a cosigned head");
            assert_eq!(witness.cosigner.verify(&note), Ok(Some(NOW_S)));
            assert_eq!(note.verify(&witness.trainer), Ok(()), "cosigned, and not signed");
        }
        Answer::BadRequest(reason) => assert!(request.old_size > head.size, "{reason}"),
        Answer::Conflict { .. } | Answer::BadProof | Answer::Forbidden | Answer::UnknownLog => {}
    }
    true
}

#[test]
fn witness_request() {
    let alone = memory::alone();
    let folder = tempfile::tempdir().expect("a folder");
    let witness = Witness::new(folder.path());
    let seeds = corpus::read("witness_request");
    run::with_seeds(&alone, "witness_request", &seeds, |bytes| property(&witness, bytes));
    // What is found goes into the corpus by itself.
    if guided::asked().is_some() {
        return;
    }
    let state = witness.state.lock().unwrap_or_else(PoisonError::into_inner);
    // Of the log in the corpus, whose heads are signed; nobody can name another one.
    let logs = state.logs().expect("its logs");
    assert_eq!(logs.iter().map(|log| log.size).collect::<Vec<_>>(), [74]);
}
