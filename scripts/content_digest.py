"""BLAKE3 in plain Python, for programs that look at files once more.

Written from the specification (https://github.com/BLAKE3-team/BLAKE3-specs),
so that whoever runs these programs installs nothing and they share no code
with what wrote the digests. Some 0.5 MB a second.
"""

INITIAL = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
BLOCK_BYTES, CHUNK_BYTES = 64, 1024
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
MASK = 0xFFFFFFFF


def schedules():
    """Which words of a block each round takes, in order."""
    order, found = tuple(range(16)), []
    for _ in range(7):
        found.append(order)
        order = tuple(order[place] for place in PERMUTATION)
    return found


SCHEDULES = schedules()
# Columns, then diagonals.
QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)


def compress(chaining, words, counter, num_bytes, flags):
    """The first eight words of the compression function."""
    state = [*chaining, *INITIAL[:4], counter & MASK, counter >> 32, num_bytes, flags]
    for schedule in SCHEDULES:
        for place, (i, j, k, l) in enumerate(QUARTERS):
            a, b, c, d = state[i], state[j], state[k], state[l]
            a = (a + b + words[schedule[2 * place]]) & MASK
            d ^= a
            d = (d >> 16 | d << 16) & MASK
            c = (c + d) & MASK
            b ^= c
            b = (b >> 12 | b << 20) & MASK
            a = (a + b + words[schedule[2 * place + 1]]) & MASK
            d ^= a
            d = (d >> 8 | d << 24) & MASK
            c = (c + d) & MASK
            b ^= c
            state[i], state[j], state[k], state[l] = a, (b >> 7 | b << 25) & MASK, c, d
    return tuple(low ^ high for low, high in zip(state[:8], state[8:]))


def words_of(block):
    block = block.ljust(BLOCK_BYTES, b"\0")
    return [int.from_bytes(block[at : at + 4], "little") for at in range(0, BLOCK_BYTES, 4)]


def of_chunk(chunk, counter, root):
    """The chaining value of a chunk; `root` is the flag of the only one, or 0."""
    chaining = INITIAL
    starts = range(0, max(len(chunk), 1), BLOCK_BYTES)
    for at in starts:
        block = chunk[at : at + BLOCK_BYTES]
        flags = CHUNK_START if at == 0 else 0
        if at == starts[-1]:
            flags |= CHUNK_END | root
        chaining = compress(chaining, words_of(block), counter, len(block), flags)
    return chaining


def of_tree(data, first_chunk, root):
    """The chaining value of data that begins at a chunk of this number."""
    if len(data) <= CHUNK_BYTES:
        return of_chunk(data, first_chunk, root)
    # The left subtree has the largest power of two of whole chunks that leaves something.
    num_left = 1 << (((len(data) - 1) // CHUNK_BYTES).bit_length() - 1)
    cut = num_left * CHUNK_BYTES
    left = of_tree(data[:cut], first_chunk, 0)
    right = of_tree(data[cut:], first_chunk + num_left, 0)
    return compress(INITIAL, [*left, *right], 0, BLOCK_BYTES, PARENT | root)


def blake3(data):
    """The digest of bytes as ledgers write it."""
    return "blake3:" + b"".join(word.to_bytes(4, "little") for word in of_tree(data, 0, ROOT)).hex()
