"""docs/wire.md is enough to decode every message: a decoder written from it agrees bit for bit."""

import itertools
import json
import random
import struct
import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch

import gradwire as gw
import independent_decoder as other

GOLDEN = json.loads((Path(__file__).parent / "golden" / "messages.json").read_text())
KEY = gw.Key(seed=2**63 + 2**40 + 5, step=2**32 - 9, tensor=77, rank=2**24 - 3, hop=254)
LENGTHS = [0, 1, 7, 511, 513, 5000]

WIDTHS = [
    *(f"qsgd:bits={bits},wire={wire}" for bits in range(2, 9) for wire in ("packed", "zstd")),
    *(f"global-qsgd:bits={b},dither={d}" for b in range(2, 9) for d in ("linear", "exponential")),
    *(f"global-qsgd:bits={bits},dither=subtractive" for bits in range(2, 9)),
    *(f"dqsg:levels={levels}" for levels in (1, 2, 5, 9, 20, 63, 127)),
    *(f"ndqsg:levels={levels}" for levels in (2, 4, 15, 16, 64, 127)),
]
BLOCKS = [
    f"{codec},block={block}"
    for codec in (
        "qsgd:levels=5,norm=l2", "qsgd:bits=3,wire=elias", "qsgd:bits=8,wire=zstd",
        "dqsg:levels=6", "dqsg:levels=127,wire=elias", "dqsg:levels=1,wire=zstd",
        "dqsg:step=0.3", "dqsg:levels=9,wire=huffman", "dqsg:step=2,wire=elias",
        "dqsg:step=0.1,wire=packed",
        "dqsg:bits_per_value=1.5", "dqsg:bits_per_value=6.5", "ndqsg:levels=3,alpha=0.5",
        "global-qsgd:levels=9,norm=l2", "global-qsgd:bits=5,norm=l2-max,dither=subtractive",
        "global-qsgd:bits=6,norm=max-l2,dither=exponential",
    )
    for block in (8, 64, 1024, "none")
]  # fmt: skip
SPARSE = [
    f"fft:{settings},domain={domain}"
    for domain in ("time", "fft", "dct", "auto")
    for settings in (
        "drop=0", "drop=0,bits=none,wire=zstd", "drop=0.5,bits=none", "drop=0.6,block=8",
        "drop=0.97,block=1024", "drop=0.9,bits=3,mantissa=0,block=64,wire=zstd",
        "drop=0.75,bits=16,mantissa=8", "drop=0.9@0/0.1@5,bits=13,mantissa=11",
    )
]  # fmt: skip
LARGEST = [
    f"topk:density={density},bits={bits},block={block}"
    for density, bits, block in itertools.product((0.01, 0.125), (1, 2), (8, 128, 4096, 65536))
]
ROTATED = [
    f"eden:bits={bits},block={block}"
    for bits, block in itertools.product((1, 2, 3, 4), (512, 1024, 4096))
] + [f"thc:bits={bits},block={block}" for bits, block in ((1, 512), (2, 1024), (5, 4096), (8, 512))]
HUFFMAN = [f"dqsg:step={step}" for step in (4, 2, 1.3, 0.9, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)]
SPECS = [
    "none",
    "fp16",
    "bf16",
    "lossless",
    *WIDTHS,
    *BLOCKS,
    *SPARSE,
    *LARGEST,
    *ROTATED,
    *HUFFMAN,
]
REFUSALS = [*GOLDEN, "dqsg:levels=5,wire=elias", "qsgd:levels=100", "ndqsg:levels=127"]


def values(numel):
    """Of many magnitudes, some of them zeros; blocks of zeros and of tiny values."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) ** 3
    x[numel // 3 :: 7] = 0.0
    x[1100:2300] = 0.0
    x[2300:3400] *= 1e-38
    return x


def patterns(y):
    """The bits of a tensor, one pattern for every NaN."""
    y = torch.where(y.isnan(), torch.nan, y)
    return y.view(torch.int32 if y.dtype == torch.float32 else torch.int16)


def decoded(message):
    """What the other decoder makes of a message, as a tensor."""
    y = other.decode(message)
    if message[5] == 2:
        return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(y)


def assert_agrees(message):
    """gw.decode and the other decoder give the same values, to the last bit."""
    ours, theirs = gw.decode(message), decoded(message)
    assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
    assert torch.equal(patterns(theirs), patterns(ours))


def payload_start(message):
    return -(-(36 + 8 * message[6] + message[7]) // 8) * 8


@pytest.mark.parametrize("spec", GOLDEN)
def test_golden_messages(spec):
    assert_agrees(b64decode(GOLDEN[spec]["message"]))


@pytest.mark.parametrize("spec", SPECS)
def test_messages_of_every_length(spec):
    codec = gw.parse(spec)
    for numel in LENGTHS:
        assert_agrees(gw.encode(codec, values(numel), KEY))


@pytest.mark.parametrize("step", [1.2, 0.1])
def test_huffman_codes_whose_streams_differ_in_size(step):
    """All but every fourth value are zeros, so the sizes are behind the body."""
    x = values(5000) * (torch.arange(5000) % 4 == 2) * 1e30
    message = gw.encode(gw.DQSG(step=step, block=512), x, KEY)
    words = np.frombuffer(message[payload_start(message) + 4 * 10 + 2 :][:8], "<u4")
    assert (words >> 31).any()
    assert_agrees(message)


@pytest.mark.parametrize("spec", GOLDEN)
def test_other_types_shapes_and_blocks_that_are_not_finite(spec):
    codec, x = gw.parse(spec), values(5000).view(5, 1, 1000)
    assert_agrees(gw.encode(codec, x[0, 0, 0], KEY))
    for dtype in (torch.float16, torch.bfloat16):
        assert_agrees(gw.encode(codec, x.to(dtype), KEY))
    x[0, 0, 600], x[3, 0, 999], x[3, 0, 998] = torch.inf, torch.nan, -torch.inf
    message = gw.encode(codec, x, KEY)
    assert gw.decode(message).isnan().any()
    assert_agrees(message)


def test_a_nested_payload():
    codec = gw.NDQSG(levels=7, ratio=5, alpha=0.9, block=64)
    vectors = [values(1000), values(1000) * 1.01, values(1000) * 0.99, values(1000) * 1.02]
    keys = [KEY.of(rank=rank) for rank in range(4)]
    payloads = [codec.nested.encode(x, key) for x, key in zip(vectors, keys, strict=True)]
    mean = torch.empty(1000)
    codec.nested.mean_into(payloads, mean, keys)
    streams = [other.Stream(gw.encode(codec, values(1000), key), 1000) for key in keys]
    bare = [bytes(payload.tolist()) for payload in payloads]
    assert [payload[0] for payload in bare] == [0, 1, 0, 1]
    _, settings = other.read_spec(str(codec))
    with np.errstate(all="ignore"):
        said = other.nested_mean(bare, 1000, settings, streams)
    assert torch.equal(patterns(torch.from_numpy(said)), patterns(mean))


def with_payload(message, payload):
    """The message with another payload and a right checksum."""
    start = payload_start(message)
    body = message[:8] + struct.pack("<Q", len(payload)) + message[16:start] + payload
    return body + struct.pack("<I", zlib.crc32(body))


def damaged(payload, rng):
    """With some bytes changed, most of them early ones, or cut, or grown."""
    payload = bytearray(payload)
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(payload) if rng.random() < 0.5 else min(32, len(payload)))
        payload[at] = rng.choice([0, 1, 2, 127, 255, payload[at] ^ 1 << rng.randrange(8)])
    if rng.random() < 0.3:
        return bytes(payload[: rng.randint(0, len(payload))] + rng.randbytes(rng.randint(0, 9)))
    return bytes(payload)


def refused(decode, message, error):
    try:
        decode(message)
    except error:
        return True
    return False


@pytest.mark.parametrize("spec", REFUSALS)
def test_both_refuse_the_same_payloads(spec):
    """And agree on what they take."""
    rng, taken = random.Random(spec), 0
    seeds = [gw.encode(gw.parse(spec), values(numel), KEY) for numel in (1, 20, 300)]
    for _ in range(100):
        message = rng.choice(seeds)
        message = with_payload(message, damaged(message[payload_start(message) : -4], rng))
        refusal = refused(gw.decode, message, gw.WireError)
        assert refused(other.decode, message, other.RefusedError) == refusal
        if not refusal:
            assert_agrees(message)
            taken += 1
    assert 0 < taken < 100
