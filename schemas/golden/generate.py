"""Writes the golden vectors of this folder: `python3 generate.py [--check]`.

Independent of the Rust crates; see formats.py. With --check nothing is written
and a difference from the committed files is an error.
"""

import hashlib
import json
import math
import pathlib
import sys

from formats import (
    b64, bits_of, consistency, contract_json, cosignature_line, cosigner_key_id, ecmascript_float, entry_float,
    entry_json, float_from_bits, inclusion, key_id, leaf_hash, note_key_hash, pae, public_key, root, sign, signed_note,
    verifier_key,
)
from campaigns import PREREGISTRATION_BYTES, campaign_entries
from samples import CONTRACT, CONTRACT_DIGEST, CONTRACT_TYPE, RUN, SEEDS, WIDE_CONTRACT, entries

FOLDER = pathlib.Path(__file__).parent
LARGEST_TREE = 17

# RFC 8032, section 7.1: the formulas of formats.py must give its public keys.
PUBLIC_KEYS = {
    "owner": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "trainer": "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "qualifier": "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    "validator": "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
}


def entry(index, kind, body, overrides):
    role = overrides.get("actor", "trainer")
    header = {
        "actor": key_id(role, public_key(SEEDS[role])), "attempt": None, "extensions": [], "format": "entry/1",
        "idem": hashlib.sha256(b"idem %d" % index).hexdigest()[:32], "index": index, "kind": kind,
        "learner": None, "ledger": "run", "origin": None, "run": RUN, "segment": None, "step": None,
        "time_us": 1796000000000000 + 1000 * index, "worker": None,
    }
    header.update({key: value for key, value in overrides.items() if key != "actor"})
    return {**header, "body": body}


def entry_lines():
    return [entry_json(entry(index, *sample)) for index, sample in enumerate(entries() + campaign_entries())]


def tree(leaves):
    hexes = lambda hashes: [value.hex() for value in hashes]
    return {
        "consistency": [
            {"new": new, "old": old, "proof": hexes(consistency(old, leaves[:new]))}
            for new in range(LARGEST_TREE + 1) for old in range(new + 1)
        ],
        "inclusion": [
            {"index": index, "proof": hexes(inclusion(index, leaves[:size])), "size": size}
            for size in range(1, LARGEST_TREE + 1) for index in range(size)
        ],
        "leaves": hexes(leaves),
        "roots": [root(leaves[:size]).hex() for size in range(len(leaves) + 1)],
    }


def notes(leaves):
    cases = []
    for role, size in [("owner", 0), ("owner", 1), ("trainer", 7), ("trainer", len(leaves))]:
        origin = "governed-ledger/run/" + RUN
        public = public_key(SEEDS[role])
        cases.append({
            "key_hash": note_key_hash(origin, public).hex(),
            "note": signed_note(SEEDS[role], origin, size, root(leaves[:size])),
            "origin": origin, "public": public.hex(), "root": root(leaves[:size]).hex(),
            "seed": SEEDS[role].hex(), "size": size,
        })
    return cases


def cosignatures(leaves):
    cases = []
    for role, size, name, time in [
        ("owner", 1, "witness.example/w1", 0), ("trainer", 7, "witness.example/w1", 1679315147),
        ("trainer", len(leaves), "w", 2**63 - 1),
    ]:
        origin = "governed-ledger/run/" + RUN
        note = signed_note(SEEDS[role], origin, size, root(leaves[:size]))
        seed, log = SEEDS["validator"], public_key(SEEDS[role])
        public = public_key(seed)
        cases.append({
            "key_id": cosigner_key_id(name, public).hex(), "line": cosignature_line(seed, name, note, time),
            "log_vkey": verifier_key(origin, note_key_hash(origin, log), 1, log), "name": name, "note": note,
            "public": public.hex(), "seed": seed.hex(), "time": str(time),
            "vkey": verifier_key(name, cosigner_key_id(name, public), 4, public),
        })
    return cases


def float_values():
    values = [0.0, -0.0, math.inf, -math.inf, 5e-324, 2.2250738585072014e-308, 2.225073858507201e-308,
              1.7976931348623157e308, 0.1, 0.2, 0.1 + 0.2, 1 / 3, 2 / 3, 0.10000000149011612, 1.5, 100.0, 123.456,
              9007199254740991.0, 9007199254740992.0, 9007199254740993.0, 9007199254740994.0, 1e22, 1e23,
              8.41e21, 9.5367431640625e-7, 4.35, 2.98023223876953125e-8, 1.0000000000000002, 0.9999999999999999]
    values += [float("1e%d" % exponent) for exponent in range(-25, 26)]
    values += [float("123456789e%d" % exponent) for exponent in range(-20, 20, 2)]
    values += [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024, 37)]
    values += [math.nextafter(math.ldexp(1.0, exponent), 0.0) for exponent in range(-1070, 1024, 97)]
    bits = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, 0xFFF00000DEADBEEF]
    for index in range(200):
        word = int.from_bytes(hashlib.sha256(b"float %d" % index).digest()[:8], "little")
        bits.append(word)
        # Learning rates, losses and norms: exponents from -30 to 30.
        bits.append(word & ~(0x7FF << 52) | (1023 - 30 + word % 61) << 52)
    for index in range(60):
        single = int.from_bytes(hashlib.sha256(b"single %d" % index).digest()[:3], "little")
        values.append(single / 2.0**24)
    negative = [-value for value in values if 0 < value < 1e6][::7]
    return values + negative, bits


def floats():
    values, bits = float_values()
    words = sorted(set([bits_of(value) for value in values] + bits))
    cases = []
    for word in words:
        # A NaN passes through Python's floats with its payload on this platform;
        # spell it from the bits so that this does not matter.
        exponent_full = word >> 52 & 0x7FF == 0x7FF
        if exponent_full and word & (1 << 52) - 1:
            cases.append({"bits": "%016x" % word, "ecmascript": None, "entry": '"NaN:%016x"' % word})
            continue
        value = float_from_bits(word)
        finite = math.isfinite(value)
        cases.append({
            "bits": "%016x" % word, "ecmascript": ecmascript_float(value) if finite else None,
            "entry": entry_float(value),
        })
    return cases


def forms():
    """Byte strings that are, or are not, entry JSON in canonical form."""
    good = [
        b"null", b"true", b"false", b"0", b"-1", b"9007199254740992", b"-9007199254740992", b"0.0", b"-0.0",
        b"1e16", b"1.5e-7", b'""', b'"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/"', '"\u00e9\u20ac\U0001d11e\u007f"'.encode(),
        b"[]", b"{}", b'{"A":1,"_type":2,"a":3,"aB":4,"ab":5}', b'{"\\"":1,"#":2}', b"[" * 64 + b"]" * 64,
    ]
    bad = [
        (b"", "empty"), (b" 1", "space before"), (b"1\n", "newline after"), (b"\xef\xbb\xbf1", "byte-order mark"),
        (b"[1, 2]", "space inside"), (b'{"a" :1}', "space before colon"), (b'{"b":1,"a":2}', "key order"),
        (b'{"a":1,"a":2}', "duplicate key"), (b'{"\xc3\xa9":1}', "key not ASCII"), (b'{"a\\n":1}', "key not printable"),
        (b'{"#":1,"\\"":2}', "key order by content"), (b'"\\/"', "escaped slash"), (b'"\\u0041"', "escaped letter"),
        (b'"\\u000a"', "long escape of newline"), (b'"\\u001F"', "upper-case hex"), (b'"\\ud834\\udd1e"', "escaped pair"),
        (b'"\x01"', "raw control"), (b'"\xff"', "not UTF-8"), (b'"\xed\xa0\x80"', "surrogate in UTF-8"),
        (b"01", "leading zero"), (b"-0", "negative integer zero"), (b"+1", "plus sign"),
        (b"9007199254740993", "integer above 2^53"), (b"-9007199254740993", "integer below -2^53"),
        (b"1.50", "trailing zero"), (b"1.", "no fraction"), (b".5", "no integer part"), (b"1e5", "exponent not needed"),
        (b"1E16", "upper-case E"), (b"1e+16", "plus in exponent"), (b"1e016", "zero in exponent"),
        (b"0.1000000000000000055", "more digits than needed"), (b"1e400", "overflow"), (b"NaN", "bare NaN"),
        (b"Infinity", "bare Infinity"), (b"[1,]", "trailing comma"), (b'{"a":1,}', "trailing comma in object"),
        (b"1 1", "two values"), (b"nul", "cut literal"), (b'"a', "cut string"), (b"[1", "cut array"),
        (b"[" * 65 + b"]" * 65, "nested 65 deep"), (b"'a'", "single quotes"), (b"/**/1", "comment"),
    ]
    cases = [{"bytes": data.hex(), "canonical": True, "why": "canonical"} for data in good]
    return cases + [{"bytes": data.hex(), "canonical": False, "why": why} for data, why in bad]


def dsse():
    cases = []
    for role, payload_type, payload in [
        ("owner", "http://example.com/HelloWorld", b"hello world"), ("validator", "application/vnd.in-toto+json", b""),
        ("owner", CONTRACT_TYPE, contract_json(CONTRACT)),
    ]:
        encoded = pae(payload_type, payload)
        public = public_key(SEEDS[role])
        cases.append({
            "keyid": key_id(role, public), "pae": encoded.hex(), "payload": b64(payload), "payload_type": payload_type,
            "public": public.hex(), "role": role, "seed": SEEDS[role].hex(), "sig": b64(sign(SEEDS[role], encoded)),
        })
    return cases


def files():
    for role, expected in PUBLIC_KEYS.items():
        assert public_key(SEEDS[role]).hex() == expected, role
    lines = entry_lines()
    leaves = [leaf_hash(line) for line in lines]
    pretty = lambda value: (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()
    loose = json.dumps(CONTRACT, indent=2, ensure_ascii=True).replace("10000.0", "1.0e4").replace("1e-06", "0.000001")
    return {
        "contract.canonical.json": contract_json(CONTRACT),
        "contract.wide.json": contract_json(WIDE_CONTRACT),
        "contract.digest.txt": (CONTRACT_DIGEST + "\n").encode(),
        "contract.written.json": (loose + "\n").encode(),
        "cosignatures.json": pretty(cosignatures(leaves)),
        "dsse.json": pretty(dsse()),
        "entries.jsonl": b"".join(line + b"\n" for line in lines),
        "floats.json": pretty(floats()),
        "forms.json": pretty(forms()),
        "notes.json": pretty(notes(leaves)),
        "preregistration.canonical.json": PREREGISTRATION_BYTES,
        "tree.json": pretty(tree(leaves)),
    }


def main():
    checking = sys.argv[1:] == ["--check"]
    different = []
    for name, content in files().items():
        path = FOLDER / name
        if checking:
            if not path.exists() or path.read_bytes() != content:
                different.append(name)
        else:
            path.write_bytes(content)
    if different:
        sys.exit("differs from what generate.py gives: " + ", ".join(different))


main()
