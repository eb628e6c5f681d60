//! The small parts of writing an entry: `cargo bench -p ledger`. What they come
//! to together, beside a plain INSERT, `scripts/bench` says.
#![allow(missing_docs, reason = "criterion's macros write functions")]

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ledger::canonical::{check_entry_json, entry_json};
use ledger::keys::{KeyPair, Role};
use ledger::note::TreeHead;
use ledger::tree::{Frontier, leaf_hash};

fn entry(criterion: &mut Criterion) {
    let body = common::step(1_000).body;
    let bytes = entry_json(&body).expect("a step has a canonical form");
    let mut group = criterion.benchmark_group("body of a step");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("canonical bytes", |bencher| bencher.iter(|| entry_json(black_box(&body))));
    group.bench_function("check", |bencher| bencher.iter(|| check_entry_json(black_box(&bytes))));
    group.bench_function("leaf hash", |bencher| bencher.iter(|| leaf_hash(black_box(&bytes))));
    group.finish();
}

fn tree(criterion: &mut Criterion) {
    let mut frontier = Frontier::new();
    criterion.bench_function("append to the tree", |bencher| {
        bencher.iter(|| frontier.append(black_box([7; 32])));
    });
    criterion.bench_function("root of the tree", |bencher| bencher.iter(|| frontier.root()));
    let key = KeyPair::random(Role::Trainer).expect("the system gives random bytes");
    let head = TreeHead { origin: "bench/run/0".to_owned(), size: 1_000, root: [7; 32] };
    criterion.bench_function("sign a head", |bencher| bencher.iter(|| head.sign(black_box(&key))));
}

criterion_group!(benches, entry, tree);
criterion_main!(benches);
