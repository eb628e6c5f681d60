//! The example tables, derived again from the data shards.

use std::io::{self, BufReader, Read};

use schemas::data::{DataManifest, DataShard, Split};
use schemas::digest::Digest;
use schemas::report::Route;

use crate::derive::examples;
use crate::evidence::{Evidence, FileError, describe};
use crate::frozen::{Bound, ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{at_end, beside, declare_rule};
use crate::rules::gl108_data_files::measure;

declare_rule!(
    /// `GL307`.
    ExampleTables,
    {
        code: "GL307",
        name: "example-tables",
        what: "Every train and val shard still has the bytes that the manifest names, and the example tables are what those \
               bytes give: windows, target counts, content ids, in the manifest's order, each split apart.",
        why: "Order, token counts and evaluation rest on the tables. A table that names windows of another split would train \
              on val text.",
        remedy: "Restore the shards from their source and compare digests; or build the tables again and freeze a new contract.",
        reference: "docs/FORMAT.md, \"Examples\"; schemas::data",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let data = match &frozen.data {
        Ok(data) => data,
        Err(reason) => return unavailable(format!("the data manifest: {reason}")),
    };
    let schemas::contract::Architecture::LlamaDecoder(shape) = &frozen.contract.architecture;
    let context_length = shape.context_length;
    at_end(move |evidence, sink| {
        let tables = [(Split::Train, &frozen.train_examples), (Split::Val, &frozen.val_examples)];
        let mut num_checked = 0;
        for (split, table) in tables {
            let deriver =
                Deriver { context_length, data, evidence, manifest: &frozen.contract.data.manifest.path };
            match deriver.compare(split, table, sink) {
                Ok(count) => num_checked += count,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        Outcome::Checked(num_checked)
    })
}

struct Deriver<'a> {
    context_length: u32,
    data: &'a DataManifest,
    evidence: &'a Evidence,
    manifest: &'a str,
}

impl Deriver<'_> {
    /// Records compared; an error says what is missing.
    fn compare(&self, split: Split, table: &Bound<ExampleTable>, sink: &mut Sink) -> Result<u64, String> {
        let name = split.name();
        let table = table.as_ref().map_err(|reason| format!("the {name} example table: {reason}"))?;
        let mut next = 0u64;
        for (index, shard) in (0u32..).zip(&self.data.shards).filter(|(_, shard)| shard.split == split) {
            self.shard(index, shard, table, &mut next, sink)?;
        }
        if next != table.num_examples() {
            let at = At::place(format!("{name} example table"));
            sink.rejected(
                at,
                "the table has another number of examples than the shards give",
                next,
                table.num_examples(),
            );
        }
        Ok(next)
    }

    fn shard(
        &self,
        index: u32,
        shard: &DataShard,
        table: &ExampleTable,
        next: &mut u64,
        sink: &mut Sink,
    ) -> Result<(), String> {
        let path = beside(self.manifest, &shard.path);
        let file = self.evidence.open(&path).map_err(|error: FileError| describe(&error))?;
        let num_bytes = file.metadata().map_err(|error| format!("{path}: {error}"))?.len();
        if num_bytes != shard.num_bytes {
            // A file of another size is another file, however much of it there is to read.
            let at = At::place(&path);
            sink.tampered(
                at,
                "the data shard has another size than the manifest",
                shard.num_bytes,
                num_bytes,
            );
            return Ok(());
        }
        let num_windows = || examples::windows(num_bytes, self.context_length).count() as u64;
        if evidence_settles(self.evidence)
            && measure(&path, Some(num_bytes), self.evidence)
                .is_ok_and(|measured| measured.is(shard.digest, Some(num_bytes)))
        {
            // The same bytes give the same records, which were compared before.
            *next += num_windows();
            return Ok(());
        }
        // A system call for each window would cost more than all else.
        let hashing = HashingReader { hasher: blake3::Hasher::new(), inner: file };
        let mut reader = BufReader::with_capacity(READ_BYTES, hashing);
        let mut first_wrong = None;
        let derived =
            examples::derive_shard(&mut reader, index, shard.num_bytes, self.context_length, &mut |record| {
                if table.get(*next) != Some(record) && first_wrong.is_none() {
                    first_wrong = Some((*next, record));
                }
                *next += 1;
            });
        // What a last short window leaves belongs to the digest too.
        let rest = io::copy(&mut reader, &mut io::sink());
        let digest = Digest::blake3(*reader.get_ref().hasher.finalize().as_bytes());
        match derived.and(rest.map(|_| ())) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(format!("{path}: {error}")),
            Ok(()) => {}
        }
        if digest != shard.digest {
            sink.tampered(At::place(&path), "the data shard differs from the manifest", shard.digest, digest);
        } else if let Some((at, record)) = first_wrong {
            let actual = format!("{:?}", table.get(at));
            let place = At::place(format!("{} example table, record {at}", shard.split.name()));
            sink.rejected(
                place,
                format!("the record is not what {path} gives"),
                format!("{record:?}"),
                actual,
            );
        }
        Ok(())
    }
}

/// Whether an earlier audit derived the tables of these frozen inputs.
fn evidence_settles(evidence: &Evidence) -> bool {
    evidence.settled.num_entries(INFO.code) > 0
}

/// Bytes of a shard that are read at a time.
const READ_BYTES: usize = 64 << 10;

struct HashingReader<R> {
    hasher: blake3::Hasher,
    inner: R,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
