"""Huffman codes: words are a code, the shortest there is, and any bytes are safe to decode."""

import heapq
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels import cpu, reference
from gradwire.kernels.formats.chunks import FAR, find_chunks, word_of_sizes
from gradwire.kernels.formats.huffman import NOTHING, PLAIN, STREAMS, THRESHOLDS, tables
from gradwire.kernels.formats.prefix import LIMIT, canonical_words, word_lengths

BACKENDS = [reference, cpu]


def encode(codes, zero, backend=cpu):
    """The stream, which is written to as much room as a message has, and not beyond."""
    most = codes.numel() + 5 * -(-codes.numel() // 4096)
    room = torch.full((most + 64,), 77, dtype=torch.uint8)
    nbytes = backend.huffman_encode(codes, room[:most], zero=zero)
    assert nbytes <= most and (room[most:] == 77).all()
    return room[:nbytes]


def head(table, sizes, *, far=False):
    """That of a chunk, and what follows its body."""
    word = FAR | sum(sizes) if far else word_of_sizes(*sizes)
    after = b"".join(size.to_bytes(2, "little") for size in sizes) if word & FAR else b""
    return bytes([table]) + word.to_bytes(4, "little"), after


def huffman_cost(weights):
    """The weight of all inner nodes of Huffman's tree, which has no limit."""
    heap, cost = list(weights), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    return cost


def test_lengths_are_huffmans_where_the_limit_allows():
    random = np.random.default_rng(0)
    for size in (2, 3, 16, 81):
        weights = random.integers(1, 50, size)
        assert (weights * word_lengths(weights)).sum() == huffman_cost(weights.tolist())


def test_lengths_are_limited_and_fill_the_code():
    weights = np.array([1 << min(i, 40) for i in range(60)])
    lengths = word_lengths(weights)
    assert lengths.max() == LIMIT
    assert sum(2.0 ** -int(n) for n in lengths) == 1
    assert (weights * lengths).sum() > huffman_cost(weights.tolist())


def test_no_word_begins_another():
    lengths = word_lengths(np.array([1, 1, 2, 3, 5, 8, 13]))
    words = [f"{w:0{n}b}"[::-1] for w, n in zip(canonical_words(lengths), lengths, strict=True)]
    assert not any(a.startswith(b) for a, b in itertools.permutations(words, 2))


def test_every_twelve_bits_begin_with_a_word_of_every_table():
    """And the words that are written are those that are read."""
    t = tables()
    for row, (words, groups) in enumerate(zip(t.words, t.groups, strict=True)):
        length, digits = groups >> 8 & 255, groups >> 16
        assert length.min() >= 1
        assert length.max() <= LIMIT
        size = int(t.sizes[row])
        width, field = 8 // size, 3 if size == 4 else 5
        index = sum(
            (digits >> width * k & (1 << width) - 1).astype(np.int64) << field * k
            for k in range(size)
        )
        mask = (np.int64(1) << length.astype(np.int64)) - 1
        assert ((words[index] >> 8 & mask) == (np.arange(1 << LIMIT) & mask)).all()
        assert ((words[index] & 255) == (groups & 255)).all()


def test_a_chunk_gets_the_table_of_its_law():
    """What the counts say is cheapest is within 1 % of what is: all tables, one after the other."""
    t = tables()
    q = np.floor(np.random.default_rng(1).standard_normal(4096) / 1.2 + 0.5).astype(np.int64)
    counts = [4096, *(int((abs(q) >= least).sum()) for least in THRESHOLDS)]
    cheapest = int(np.argmin(np.array(counts) @ t.costs.astype(np.int64)))
    stream = encode(torch.from_numpy(q + 127).to(torch.uint8), 127)
    assert stream[0] == cheapest
    assert stream.numel() < 4096 * 2 / 8


@st.composite
def codes_of_steps(draw):
    scale = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 12.0, 40.0, 200.0]))
    numel = 8 * draw(st.integers(0, 1200))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    values = np.clip(np.round(scale * random.standard_t(2, numel)), -127, 127)
    zero = draw(st.sampled_from([127, 8, 0]))
    return torch.from_numpy((values.astype(np.int64) + zero) % 256).to(torch.uint8), zero


@settings(max_examples=60, deadline=None)
@given(codes_of_steps())
def test_codes_come_back(case):
    codes, zero = case
    stream, back = encode(codes, zero), torch.full_like(codes, 77)
    assert cpu.huffman_decode(stream, back, zero=zero)
    assert torch.equal(back, codes)


NEAR = (-33, -32, 0, 31, 32, 300)


@pytest.mark.parametrize("first", [33, 64, 65, 700])
def test_sizes_come_back(first):
    """In the word as long as they fit it."""
    for more in itertools.product(NEAR, NEAR, (-65, -64, 0, 191, 192, 300)):
        sizes = [first, *(first + each for each in more)]
        if min(sizes) < 0:
            continue
        before, after = head(0, sizes)
        near = all(-32 <= each < 32 for each in more[:2]) and -64 <= more[2] < 192
        assert near == (not after)
        stream = np.frombuffer(before + bytes(sum(sizes)) + after, np.uint8)
        ids, found, starts = find_chunks(stream, 4096)
        assert (ids.tolist(), found.tolist()) == ([0], [sizes])
        assert starts.tolist() == [5, len(stream)]


def test_sizes_that_would_lead_elsewhere_are_refused():
    """Of two chunks that fill the stream, one has less than nothing; a sum that is none."""
    words = b"".join(word.to_bytes(4, "little") for word in (0, word_of_sizes(*[100] * 4)))
    assert find_chunks(np.frombuffer(bytes(2) + words + bytes(272), np.uint8), 8192) is None
    before, _ = head(0, (1, 1, 1, 0), far=True)
    assert find_chunks(np.frombuffer(before + bytes(3) + bytes([255] * 8), np.uint8), 4096) is None


def test_a_chunk_is_sent_as_bytes_if_its_sizes_make_it_as_large():
    values, seen = torch.randn(512, generator=torch.Generator().manual_seed(0)), set()
    values[1::4] = values[2::4] = 0
    for scale in range(40, 120):
        codes = ((scale * values).round().clamp(-127, 127) + 127).to(torch.uint8)
        stream, back = encode(codes, 127), torch.empty_like(codes)
        seen.add("bytes" if stream[0] == PLAIN else "far" if stream[4] & 128 else "near")
        assert cpu.huffman_decode(stream, back, zero=127)
        assert torch.equal(back, codes) and torch.equal(stream, encode(codes, 127, reference))
    assert seen == {"bytes", "far", "near"}


@pytest.mark.parametrize("at", range(STREAMS))
@pytest.mark.parametrize("scale", [2, 30])
def test_streams_of_unequal_sizes_are_no_reason_to_send_bytes(at, scale):
    """All nonzeros are in one stream, as in a matrix that has but every fourth column."""
    values = torch.zeros(4096)
    values[at::4] = scale * torch.randn(1024, generator=torch.Generator().manual_seed(at))
    codes = (values.round().clamp(-127, 127) + 127).to(torch.uint8)
    streams, back = [encode(codes, 127, backend) for backend in BACKENDS], torch.empty_like(codes)
    assert torch.equal(*streams)
    assert streams[0][4] & 128
    assert streams[0].numel() < {2: 850, 30: 2100}[scale]
    for backend in BACKENDS:
        assert backend.huffman_decode(streams[0], back.fill_(77), zero=127)
        assert torch.equal(back, codes)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60), st.integers(0, 155), st.integers(1, 20),
    st.tuples(*[st.integers(0, 20)] * (STREAMS - 1)), st.booleans(),
)  # fmt: skip
def test_decoders_agree_on_garbage(octets, table, eighths, sizes, far):
    """A chunk whose sizes are right, so that its streams are really read."""
    numel, low = 8 * eighths, int(tables().lows[table])
    last = len(octets) - sum(sizes) - (eighths * (low + 1) if low else 0)
    if last < 0:
        return
    before, after = head(table, (*sizes, last), far=far)
    data = torch.tensor(list(before + octets + after), dtype=torch.uint8)
    answers = []
    for backend in BACKENDS:
        codes = torch.zeros(numel, dtype=torch.uint8)
        whole = backend.huffman_decode(data, codes, zero=127)
        answers.append((whole, codes.tolist() if whole else None))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("scale", [0.0, 14.0])
def test_decoders_agree_on_every_flipped_bit(scale):
    """One value is 127, so that the next larger one, which there is not, is a bit away."""
    values = (scale * torch.randn(64, generator=torch.Generator().manual_seed(0))).round()
    values[0], values[1] = 127, -127
    stream = encode((values + 127).to(torch.uint8), 127, reference)
    for bit in range(8 * stream.numel()):
        damaged = stream.clone()
        damaged[bit // 8] ^= 1 << bit % 8
        rooms = [torch.zeros(64, dtype=torch.uint8) for _ in BACKENDS]
        wholes = [
            b.huffman_decode(damaged, r, zero=127) for b, r in zip(BACKENDS, rooms, strict=True)
        ]
        assert wholes[0] == wholes[1]
        assert not wholes[0] or torch.equal(*rooms)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "octets",
    [b"", bytes(4), bytes([200, 0, 0, 0, 0]), bytes([PLAIN, 0, 0, 0, 0]),
     bytes([PLAIN, 1, 0, 0, 0, *range(16)]), bytes([NOTHING, 1, 0, 0, 0, 7]),
     bytes([0, 255, 255, 255, 255]), bytes([9, 0, 0, 0, 0]), bytes([9, 0, 0, 0, 128]),
     head(9, (16, 0, 0, 0))[0] + bytes(range(16)), head(9, (0, 0, 0, 0), far=True)[0] + bytes(7),
     head(9, (1, 1, 1, 0), far=True)[0] + bytes(11)],
)  # fmt: skip
def test_what_is_no_chunk_is_refused(backend, octets):
    stream = torch.tensor(list(octets), dtype=torch.uint8)
    assert not backend.huffman_decode(stream, torch.zeros(16, dtype=torch.uint8), zero=127)
