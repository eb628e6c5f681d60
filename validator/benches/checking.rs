//! The small parts of an audit: `cargo bench -p validator`. What they come to
//! together `scripts/bench` says.
#![allow(missing_docs, reason = "criterion's macros write functions")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use validator::canonical::check_entry_json;
use validator::derive::order::Order;
use validator::derive::philox::philox4x32_10;
use validator::tree::{Frontier, leaf_hash};

/// Entries of every kind, one a line.
const ENTRIES: &str = include_str!("../../schemas/golden/entries.jsonl");

fn entries(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("golden entries");
    group.throughput(Throughput::Bytes(ENTRIES.len() as u64));
    group.bench_function("canonical form", |bencher| {
        bencher.iter(|| ENTRIES.lines().all(|line| check_entry_json(black_box(line.as_bytes())).is_ok()));
    });
    group.bench_function("tree", |bencher| {
        bencher.iter(|| {
            let mut frontier = Frontier::new();
            ENTRIES.lines().for_each(|line| frontier.append(leaf_hash(black_box(line.as_bytes()))));
            frontier.root()
        });
    });
    group.finish();
}

fn derivations(criterion: &mut Criterion) {
    let mut position = 0;
    let mut order = Order::new("train", 7, 100_000);
    criterion.bench_function("example at the next position", |bencher| {
        bencher.iter(|| {
            position += 1;
            order.global(black_box(position))
        });
    });
    criterion.bench_function("four random words", |bencher| {
        bencher.iter(|| philox4x32_10(black_box([1, 2, 3, 4]), black_box([5, 6])));
    });
}

criterion_group!(benches, entries, derivations);
criterion_main!(benches);
