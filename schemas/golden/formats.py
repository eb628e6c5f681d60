"""Independent implementation of docs/FORMAT.md for the golden vectors.

Python's standard library only. Shares no code with the Rust crates: shortest
digits come from Python's repr, hashes from hashlib, Ed25519 from the formulas
of RFC 8032, section 5.1.
"""

import base64
import hashlib
import math
import struct

# ---------------------------------------------------------------- numbers


def float_from_bits(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def bits_of(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def shortest_digits(value):
    """Digits and decimal point position k of a positive finite double: 0.DIGITS x 10^k."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + (int(exponent) if exponent else 0)
    point -= len(whole + fraction) - len((whole + fraction).lstrip("0"))
    digits = digits.rstrip("0")
    return digits, point


def entry_float(value):
    """Spelling of a double in entry JSON, quotes included where it is a string."""
    if math.isnan(value):
        return '"NaN:%016x"' % bits_of(value)
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    digits, k = shortest_digits(abs(value))
    d = len(digits)
    if d <= k <= 16:
        text = digits + "0" * (k - d) + ".0"
    elif 0 < k <= 16:
        text = digits[:k] + "." + digits[k:]
    elif -5 < k <= 0:
        text = "0." + "0" * -k + digits
    else:
        text = digits[0] + ("." + digits[1:] if d > 1 else "") + "e" + str(k - 1)
    return sign + text


def ecmascript_float(value):
    """Number::toString of ECMA-262, as RFC 8785 asks; finite values only."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, n = shortest_digits(abs(value))
    k = len(digits)
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        exponent = n - 1
        text = digits[0] + ("." + digits[1:] if k > 1 else "")
        text += "e" + ("+" if exponent > 0 else "-") + str(abs(exponent))
    return sign + text


# ------------------------------------------------------------------- JSON

SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def string(text):
    out = []
    for character in text:
        if character in SHORT_ESCAPES:
            out.append(SHORT_ESCAPES[character])
        elif ord(character) < 0x20:
            out.append("\\u%04x" % ord(character))
        else:
            out.append(character)
    return '"' + "".join(out) + '"'


def write(value, spell_float):
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        assert abs(value) <= 2**53
        return str(value)
    if isinstance(value, float):
        return spell_float(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        return "[" + ",".join(write(item, spell_float) for item in value) + "]"
    keys = sorted(value)
    assert all(0x20 <= ord(character) < 0x7F for key in keys for character in key)
    return "{" + ",".join(string(key) + ":" + write(value[key], spell_float) for key in keys) + "}"


def entry_json(value):
    return write(value, entry_float).encode("utf-8")


def contract_json(value):
    # For ASCII keys, byte order and the UTF-16 order of RFC 8785 agree.
    return write(value, ecmascript_float).encode("utf-8")


# ------------------------------------------------------------------- tree


def sha256(data):
    return hashlib.sha256(data).digest()


def leaf_hash(data):
    return sha256(b"\x00" + data)


def split_point(n):
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def root(leaves):
    if not leaves:
        return sha256(b"")
    if len(leaves) == 1:
        return leaves[0]
    k = split_point(len(leaves))
    return sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:]))


def inclusion(m, leaves):
    """PATH of RFC 6962, 2.1.1."""
    if len(leaves) == 1:
        return []
    k = split_point(len(leaves))
    if m < k:
        return inclusion(m, leaves[:k]) + [root(leaves[k:])]
    return inclusion(m - k, leaves[k:]) + [root(leaves[:k])]


def consistency(m, leaves):
    """PROOF of RFC 6962, 2.1.2; empty for m = 0 and m = n."""
    if m == 0 or m == len(leaves):
        return []
    return subproof(m, leaves, True)


def subproof(m, leaves, whole):
    if m == len(leaves):
        return [] if whole else [root(leaves)]
    k = split_point(len(leaves))
    if m <= k:
        return subproof(m, leaves[:k], whole) + [root(leaves[k:])]
    return subproof(m - k, leaves[k:], False) + [root(leaves[:k])]


# ---------------------------------------------------------------- Ed25519

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def point_add(a, b):
    x1, y1, z1, t1 = a
    x2, y2, z2, t2 = b
    aa = (y1 - x1) * (y2 - x2) % P
    bb = (y1 + x1) * (y2 + x2) % P
    cc = 2 * t1 * t2 * D % P
    dd = 2 * z1 * z2 % P
    e, f, g, h = bb - aa, dd - cc, dd + cc, bb + aa
    return e * f % P, g * h % P, f * g % P, e * h % P


def point_mul(s, point):
    out = (0, 1, 1, 0)
    while s > 0:
        if s & 1:
            out = point_add(out, point)
        point = point_add(point, point)
        s >>= 1
    return out


def recover_x(y, sign):
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P)
    x = pow(x2, (P + 3) // 8, P)
    if (x * x - x2) % P != 0:
        x = x * SQRT_M1 % P
    return P - x if (x & 1) != sign else x


BASE_Y = 4 * pow(5, -1, P) % P
BASE_X = recover_x(BASE_Y, 0)
BASE = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % P)


def compress(point):
    x, y, z, _ = point
    inverse = pow(z, -1, P)
    return (y * inverse % P | (x * inverse % P & 1) << 255).to_bytes(32, "little")


def expand(seed):
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, digest[32:]


def public_key(seed):
    return compress(point_mul(expand(seed)[0], BASE))


def sign(seed, message):
    scalar, prefix = expand(seed)
    public = public_key(seed)
    r = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % Q
    commitment = compress(point_mul(r, BASE))
    challenge = int.from_bytes(hashlib.sha512(commitment + public + message).digest(), "little") % Q
    return commitment + ((r + challenge * scalar) % Q).to_bytes(32, "little")


# -------------------------------------------------------- notes, envelopes


def b64(data):
    return base64.b64encode(data).decode("ascii")


def key_id(role, public):
    return role + ":" + sha256(public).hex()[:16]


def note_key_hash(name, public):
    return sha256(name.encode() + b"\n\x01" + public)[:4]


def signed_note(seed, origin, size, root_hash):
    text = "%s\n%d\n%s\n" % (origin, size, b64(root_hash))
    line = note_key_hash(origin, public_key(seed)) + sign(seed, text.encode())
    return "%s\n\u2014 %s %s\n" % (text, origin, b64(line))


def cosigner_key_id(name, public):
    """Key ID of a witness: c2sp.org/tlog-cosignature, type 0x04."""
    return sha256(name.encode() + b"\n\x04" + public)[:4]


def cosignature_line(seed, name, note, time):
    """A timestamped Ed25519 cosignature over the note's text, as a signature line."""
    text = note.split("\n\n")[0] + "\n"
    message = ("cosignature/v1\ntime %d\n" % time).encode() + text.encode()
    blob = cosigner_key_id(name, public_key(seed)) + time.to_bytes(8, "big") + sign(seed, message)
    return "\u2014 %s %s\n" % (name, b64(blob))


def verifier_key(name, key_hash, kind, public):
    return "%s+%s+%s" % (name, key_hash.hex(), b64(bytes([kind]) + public))


def pae(payload_type, payload):
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type.encode(), len(payload), payload)
