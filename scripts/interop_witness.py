#!/usr/bin/env python3
"""Shows heads and proofs to somebody else's implementation of the specifications
of transparency logs (`aics-tlog`, by PyPI), and prints what it said, as one JSON
object. Nothing of this project is used. A witness that is not this project's is
`aics-witness`, of the same environment.

`log-keys ORIGIN HEX...`: verifier keys of Ed25519 keys that sign a log's heads.

`head FILE --log VKEY --witness VKEY... --quorum N`: the newest note of a file of
cosigned heads is signed by the log, and by so many of these witnesses. Several
notes of one text are one head with the signatures of all of them.

`proof FILE --log VKEY --witness VKEY... --quorum N`: a `c2sp.org/tlog-proof`. The
head in it is signed so, and the entry that the proof carries is in its tree.

Exit codes: 0 it took it; 1 it refused it; 2 it could not run.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from interop_said import Refused, tell

PROOF_HEADER = "c2sp.org/tlog-proof@v1"


def log_keys(arguments: argparse.Namespace) -> dict[str, Any]:
    from aics_tlog import format_vkey, vkey_from_ed25519

    keys = [vkey_from_ed25519(arguments.origin, bytes.fromhex(key)) for key in arguments.keys]
    return {"vkeys": [format_vkey(key) for key in keys]}


def check_note(note: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    from aics_tlog import parse_vkey, verify_checkpoint

    result = verify_checkpoint(
        note,
        parse_vkey(arguments.log),
        [parse_vkey(key) for key in arguments.witness],
        arguments.quorum,
    )
    if not result.ok:
        raise Refused(f"aics-tlog: {result.error}")
    return {
        "origin": result.origin,
        "root": result.root.hex(),
        "size": result.size,
        "times_s": result.timestamps,
        "witnesses": sorted(result.witnesses),
    }


def head(arguments: argparse.Namespace) -> dict[str, Any]:
    from aics_tlog import Note, parse_note

    texts = arguments.file.read_text(encoding="utf-8")
    # A note ends with its signatures and one empty line.
    parts = texts.rstrip("\n").split("\n\n")
    if len(parts) % 2 != 0:
        raise Refused("signed-note: the file is no sequence of notes")
    notes = [parse_note(f"{text}\n\n{signatures}\n") for text, signatures in zip(parts[::2], parts[1::2])]
    newest = notes[-1].text
    signatures: list[Any] = []
    for note in notes:
        for line in note.signatures:
            # The log's own line is in each of them.
            if note.text == newest and line not in signatures:
                signatures.append(line)
    return check_note(Note(text=newest, signatures=tuple(signatures)), arguments)


def proof(arguments: argparse.Namespace) -> dict[str, Any]:
    import base64

    from aics_tlog import leaf_hash, parse_note, verify_inclusion

    text = arguments.file.read_text(encoding="utf-8")
    lead, _, note = text.partition("\n\n")
    header, extra, index, *hashes = lead.split("\n")
    if header != PROOF_HEADER or not extra.startswith("extra ") or not index.startswith("index "):
        raise Refused("tlog-proof: the lines before the head are not header, extra, index and hashes")
    said = check_note(parse_note(note), arguments)
    entry = base64.b64decode(extra.removeprefix("extra "), validate=True)
    path = [base64.b64decode(line, validate=True) for line in hashes]
    place = int(index.removeprefix("index "))
    if not verify_inclusion(leaf_hash(entry), place, said["size"], path, bytes.fromhex(said["root"])):
        raise Refused("aics-tlog: the hashes do not lead from the entry to the root")
    return {**said, "index": place, "kind": json.loads(entry)["kind"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("log-keys")
    verb.add_argument("origin")
    verb.add_argument("keys", nargs="+", help="64 hex digits")
    verb.set_defaults(ask=log_keys)
    for name, ask in (("head", head), ("proof", proof)):
        verb = verbs.add_parser(name)
        verb.add_argument("file", type=pathlib.Path)
        verb.add_argument("--log", required=True, metavar="VKEY")
        verb.add_argument("--witness", action="append", default=[], metavar="VKEY")
        verb.add_argument("--quorum", type=int, required=True)
        verb.set_defaults(ask=ask)
    # What is no note or proof at all, the package meets with these.
    return tell(parser, ValueError, KeyError)


if __name__ == "__main__":
    sys.exit(main())
