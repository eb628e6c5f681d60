"""What the quality target of a frozen run should be, from its frozen shards.

A contract states its threshold in the owner's word, and an audit compares with
it. Where it is meant to be the score of the interpolated byte 3-gram model
(`ledger init --baseline`), it follows from the shards that the contract binds.
This computes it from them once more, from the page and not from the code that
wrote the contract. It believes neither the example tables nor `derivation`. It
does not say whether the contract is signed or the run in order: that is the
audit's.
"""

import collections
import json
import math
import pathlib
import sqlite3

from content_digest import blake3

# Two logarithms that round otherwise differ by far less, two texts by more.
TOLERANCE = 1e-9


class NotDerived(Exception):
    """What is not as the contract says, or no score of this model."""


def frozen_contract(ledger):
    """The contract that a ledger begins with."""
    connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        first = connection.execute("SELECT entry FROM entries WHERE seq = 0").fetchone()
    finally:
        connection.close()
    if first is None:
        raise ValueError(f"{ledger} holds no entry; hint: name the folder of a frozen run")
    return json.loads(json.loads(first[0])["body"]["det"]["contract"])


def read(folder, path, expected):
    """Bytes of a file that the contract binds by digest."""
    if pathlib.PurePosixPath(path).is_absolute() or ".." in pathlib.PurePosixPath(path).parts:
        raise NotDerived(f"{path} leads out of {folder}")
    content = (folder / path).read_bytes()
    found = blake3(content)
    if found != expected:
        raise NotDerived(f"{folder / path} has digest {found}, and {expected} was frozen; restore the file")
    return content


def shards_of(folder, contract):
    """Bytes of the shards by split, each compared with what was frozen."""
    bound = contract["data"]["manifest"]
    manifest = json.loads(read(folder, bound["path"], bound["digest"]))
    beside = (folder / bound["path"]).parent
    shards = {"train": [], "val": []}
    for shard in manifest["shards"]:
        shards[shard["split"]].append(read(beside, shard["path"], shard["digest"]))
    return shards


class Trigram:
    """Interpolated counts with Witten-Bell weights (Witten and Bell 1991).

    p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h)), c(h) occurrences of h
    being followed by T(h) distinct bytes; p(w | h') where h never occurred, h'
    being h without its first byte; 1/256 below the empty history. Counts do not
    reach from one shard into the next.
    """

    LONGEST_HISTORY = 2

    def __init__(self, shards):
        self.counts = collections.Counter()
        for shard in shards:
            for length in range(1, self.LONGEST_HISTORY + 2):
                self.counts.update(shard[at : at + length] for at in range(len(shard) - length + 1))
        self.followed = collections.Counter()
        self.distinct = collections.Counter()
        for seen, count in self.counts.items():
            self.followed[seen[:-1]] += count
            self.distinct[seen[:-1]] += 1

    def probability(self, history, byte):
        """Of one byte, as bytes, behind a history of at most two."""
        lower = self.probability(history[1:], byte) if history else 1 / 256
        followed, distinct = self.followed[history], self.distinct[history]
        if followed == 0:
            return lower
        return (self.counts[history + byte] + distinct * lower) / (followed + distinct)


def windows(shards, context):
    """Shard, first target and the place behind the last one of each example (docs/FORMAT.md, "Examples")."""
    for shard in shards:
        for offset in range(0, len(shard) - 1, context):
            yield shard, offset + 1, min(offset + context, len(shard) - 1) + 1


def derive(folder):
    """The target's threshold, and the score that it should be, in bits per byte."""
    folder = pathlib.Path(folder)
    contract = frozen_contract(folder / "run.db")
    target = contract["quality_target"]
    if target is None:
        raise NotDerived(f"the contract in {folder / 'run.db'} has no quality target")
    streams = [stream for stream in contract["evaluation"]["streams"] if stream["name"] == target["stream"]]
    if len(streams) != 1 or streams[0]["split"] != "val" or streams[0]["metric"] != "bits_per_byte":
        raise NotDerived(f"the stream {target['stream']} of the quality target is none of bits per byte on val")
    shards = shards_of(folder, contract)
    seen = collections.Counter()
    examples = windows(shards["val"], contract["architecture"]["context_length"])
    for number, (shard, first, end) in enumerate(examples):
        if number == streams[0]["num_examples"]:
            break
        seen.update(shard[max(at - Trigram.LONGEST_HISTORY, 0) : at + 1] for at in range(first, end))
    if not seen:
        raise NotDerived(f"the stream {target['stream']} has no byte to score")
    model = Trigram(shards["train"])
    nats = math.fsum(-count * math.log(model.probability(text[:-1], text[-1:])) for text, count in seen.items())
    num_bytes = seen.total()
    score = nats / (num_bytes * math.log(2))
    return {
        "is_derived": math.isclose(score, target["threshold"], rel_tol=TOLERANCE, abs_tol=0),
        "num_bytes": num_bytes,
        "num_train_bytes": sum(len(shard) for shard in shards["train"]),
        "score": score,
        "threshold": target["threshold"],
    }
