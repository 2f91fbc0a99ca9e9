"""A decoder of messages, written from docs/wire.md and nothing else: no line of gradwire is here.

`decode(message)` gives the values as an array of their shape: float32, float16, or uint16 for the
bit patterns of bfloat16, which NumPy does not have. `RefusedError` says that it is no message.
"""

import math
import struct
import zlib
from itertools import accumulate, pairwise

import numpy as np
import zstandard

from independent_huffman import RefusedError, read_huffman, require, tiles, unpack
from independent_transforms import inverse

F32 = np.float32
LEAST = F32(2.0**-100)
DEFAULTS = {
    "none": {},
    "fp16": {},
    "bf16": {},
    "lossless": {},
    "qsgd": {"block": 512, "wire": "packed"},
    "dqsg": {"block": 4096, "wire": "huffman"},
    "ndqsg": {"levels": 15, "alpha": 1.0, "block": None, "wire": "zstd"},
    "eden": {"bits": 2, "block": 1024},
    "global-qsgd": {"block": 512, "wire": "packed", "dither": "linear"},
    "thc": {"bits": 4, "block": 1024},
    "fft": {"bits": 4, "mantissa": 1, "block": 256, "wire": "packed"},
    "topk": {"bits": 2, "block": 4096},
}


# The message


def decode(message):
    """The values of a message."""
    require(len(message) >= 44)
    magic, version, dtype, ndim, length, size = struct.unpack_from("<4sBBBBQ", message)
    require(magic == b"GRDW" and version == 1 and dtype < 3 and ndim <= 32 and length)
    end = 36 + 8 * ndim + length
    start = -(-end // 8) * 8
    require(len(message) == start + size + 4 and not any(message[end:start]))
    require(zlib.crc32(message[:-4]) == int.from_bytes(message[-4:], "little"))
    shape = struct.unpack_from(f"<{ndim}Q", message, 36)
    name, settings = read_spec(bytes(message[end - length : end]).decode())
    numel = math.prod(shape)
    with np.errstate(all="ignore"):
        values = PAYLOADS[name](bytes(message[start:-4]), numel, settings, Stream(message, numel))
        return as_dtype(values, dtype).reshape(shape)


def read_spec(spec):
    """The name, and the settings with the defaults of those that are not written."""
    name, _, text = spec.partition(":")
    require(name in DEFAULTS)
    given = dict(item.split("=", 1) for item in text.split(",")) if text else {}
    defaults = DEFAULTS["qsgd"] if name == "dqsg" and "levels" in given else DEFAULTS[name]
    settings = defaults | {key: read_value(value) for key, value in given.items()}
    if name in ("qsgd", "global-qsgd") and "levels" not in settings:
        settings["levels"] = (1 << settings["bits"] - 1) - 1
    return name, settings


def read_value(text):
    if text == "none":
        return None
    if text.isdigit():
        return int(text)
    return float(text) if text.replace(".", "").isdigit() else text


def as_dtype(values, dtype):
    """float32 rounded to float16, or to the bit patterns of bfloat16."""
    if dtype == 2:
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    return values.astype(np.float16) if dtype == 1 else values


# Packed codes, wires and random bits


def packed_nbytes(numel, bits):
    return bits * -(-numel // 8)


class Stream:
    """The random bits of the key of a message."""

    def __init__(self, message, numel):
        words = struct.unpack_from("<5I", message, 16)
        self.key, self.counter = words[:2], (words[3], words[4], words[2])
        self.numel, self.dtype = numel, message[5]

    def bits(self):
        """r(i) of all values."""
        parts = [np.zeros(0, np.int64)]
        for first, size in tiles(self.numel):
            words = self.philox(np.arange(first // 8, first // 8 + size // 8, dtype=np.uint64))
            halves = [np.stack((word & 0xFFFF, word >> 16), 1).reshape(-1) for word in words]
            parts.append(np.concatenate(halves).astype(np.int64))
        return np.concatenate(parts)[: self.numel]

    def philox(self, c0):
        """Four words for each counter."""
        mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        c1, c2, c3 = (np.full_like(c0, word) for word in self.counter)
        k0, k1 = self.key
        c0 = c0 & mask
        for _ in range(7):
            p, q = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
            c0, c1 = (q >> half) ^ c1 ^ np.uint64(k0), q & mask
            c2, c3 = (p >> half) ^ c3 ^ np.uint64(k1), p & mask
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        return c0, c1, c2, c3


def inflate(frame, size):
    """The content of one zstd frame."""
    try:
        require(zstandard.frame_content_size(frame) == size)
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError:
        raise RefusedError from None


def read_wire(payload, numel, settings, bits, levels):
    """The scale of each value, and its code."""
    block, wire = settings["block"], settings["wire"]
    num_blocks = min(numel, 1) if block is None else -(-numel // block)
    mark = 8 if wire == "elias" else 0
    require(len(payload) >= mark + 4 * num_blocks)
    scales = np.frombuffer(payload, "<f4", num_blocks, mark).astype(F32)
    rest = payload[mark + 4 * num_blocks :]
    if wire == "elias":
        codes = read_elias(rest, numel, levels, int.from_bytes(payload[:8], "little"))
    elif wire == "huffman":
        codes = read_huffman(rest, -(-numel // 8) * 8, levels)[:numel]
    else:
        width = bits if wire == "packed" else 2 if bits <= 2 else 4 if bits <= 4 else 8
        nbytes = packed_nbytes(numel, width)
        rest = inflate(rest, nbytes) if wire == "zstd" else rest
        require(len(rest) == nbytes)
        codes = unpack(rest, numel, width)
    return np.repeat(scales, block or numel)[:numel], codes


def read_elias(stream, numel, levels, mark):
    """The codes of a dense or sparse stream."""
    bits = "".join(f"{octet:08b}" for octet in stream)
    codes, at, position = np.full(numel, levels, np.int64), 0, -1
    require(mark <= numel + 1)

    def take(count):
        nonlocal at
        require(at + count <= len(bits))
        at += count
        return bits[at - count : at]

    def omega():
        k = 1
        while take(1) == "1":
            k = int("1" + take(k), 2)
        return k

    for _ in range(mark - 1 if mark else numel):
        position += omega() if mark else 1
        if mark:
            negative, magnitude = take(1) == "1", omega()
        else:
            magnitude = omega() - 1
            negative = magnitude > 0 and take(1) == "1"
        require(position < numel and magnitude <= levels)
        codes[position] = levels - magnitude if negative else levels + magnitude
    require(len(bits) - at < 8 and "1" not in bits[at:])
    return codes


# Payloads


def read_floats(dtype):
    def read(payload, numel, settings, stream):
        require(len(payload) == numel * np.dtype(dtype).itemsize)
        values = np.frombuffer(payload, dtype)
        if dtype == "<u2":  # bfloat16
            return (values.astype(np.uint32) << 16).view(F32)
        return values.astype(F32)

    return read


def read_head(payload):
    require(payload[:4] in (bytes(4), b"\1\0\0\0"))
    return payload[0], payload[4:]


def read_qsgd(payload, numel, settings, stream):
    levels = settings["levels"]
    scale, code = read_wire(payload, numel, settings, (2 * levels).bit_length(), levels)
    return (code - levels).astype(F32) * (scale * F32(1 / levels))


def read_dqsg(payload, numel, settings, stream):
    if "levels" in settings:
        levels = settings["levels"]
        scale, code = read_wire(payload, numel, settings, (2 * levels).bit_length(), levels)
        return undither(code - levels, step_of(scale, levels), stream.bits())
    step, code = read_wire(payload, numel, settings, 8, 127)
    return undither(code - 127, step, stream.bits())


def read_ndqsg(payload, numel, settings, stream):
    nested, payload = read_head(payload)
    require(not nested)
    return read_dqsg(payload, numel, settings, stream)


def step_of(scale, levels):
    return np.where(scale <= LEAST, F32(0), scale / F32(levels))


def undither(level, step, random, workers=1):
    level = (level + 128) % 256 - 128
    return (level * 2**17 - 2 * random + 65535).astype(F32) * (step * F32(2.0**-17 / workers))


def nested_mean(payloads, numel, settings, streams):
    """The mean of a group of workers, of whom some send nested payloads."""
    levels, ratio, alpha = settings["levels"], settings["ratio"], F32(settings["alpha"])
    workers, total = len(payloads), np.zeros(numel, F32)
    heads = [read_head(payload) for payload in payloads]
    parts = [(nested, payload, s) for (nested, payload), s in zip(heads, streams, strict=True)]
    plain_first = sorted(parts, key=lambda part: part[0])
    for count, (nested, payload, stream) in enumerate(plain_first):
        bits = (ratio - 1 if nested else 2 * levels).bit_length()
        scale, code = read_wire(payload, numel, settings, bits, None)
        step = step_of(scale, levels)
        if nested:
            y = total * F32(workers / count)
            e = undither(code - ratio // 2, F32(1), stream.bits())
            d = e - y * (alpha / step)
            value = y + (d - np.rint(d * F32(1 / ratio)) * F32(ratio)) * (step * alpha)
            total = total + np.where(step == 0, F32(0), value) * F32(1 / workers)
        else:
            total = total + undither(code - levels, step, stream.bits(), workers)
    return total


def read_global_qsgd(payload, numel, settings, stream):
    levels, dither = settings["levels"], settings["dither"]
    bits = (2 * levels).bit_length()
    scale, code = read_wire(payload, numel, settings, bits, levels)
    if dither == "exponential":
        exponent = code & (1 << bits - 1) - 1
        power = np.where(exponent > 0, np.ldexp(F32(1), 1 - exponent), F32(0)).astype(F32)
        return np.where((code >> bits - 1) & (exponent > 0), -power, power) * scale
    level, unit = (code - levels).astype(F32), scale * F32(1 / levels)
    if dither == "subtractive":
        unit = np.where(scale <= LEAST, F32(0), unit)
        level = level + (65535 - 2 * stream.bits()).astype(F32) * F32(2.0**-17)
    return level * unit


# fft


def read_fft(payload, numel, settings, stream):
    require(len(payload) >= 8)
    count, domain, form, rice, zero = struct.unpack_from("<IBBBB", payload)
    bits, block, mantissa = settings["bits"], settings["block"], settings["mantissa"]
    zstd = settings["wire"] == "zstd"
    require(1 <= count <= block and domain < 3 and zero == 0)
    require((form == 0) == (count == block) and form < (2 if zstd else 3))
    require(rice < (16 if form == 2 else 1))
    lengths = [min(block, numel - at) for at in range(0, numel, block)]
    counts = [-(-length * count // block) for length in lengths]
    kept, width = sum(counts), 4 if bits is not None and mantissa > 7 else 2
    sizes = [4 * kept if bits is None else packed_nbytes(kept, bits), width * len(counts)]
    places_nbytes = 8 * -(-numel // 64) if form else 0
    body = payload[8:]
    body = inflate(body, sum(sizes) + places_nbytes) if zstd else body
    require(len(body) >= sum(sizes) if form == 2 else len(body) == sum(sizes) + places_nbytes)
    scales = np.frombuffer(body[sizes[0] : sum(sizes)], f"<u{width}").astype(np.int64)
    places = read_places(body[sum(sizes) :], form, rice, kept, numel)
    require(np.array_equal(np.bincount(places // block, minlength=len(counts)), counts))
    values = read_coefficients(body[: sizes[0]], scales, counts, bits, mantissa)
    coefficients = np.zeros(numel, F32)
    coefficients[places] += values
    coefficients[np.repeat(scales == 0, block)[:numel]] = np.nan
    return inverse(domain, coefficients, block)


def read_bits(octets):
    return np.unpackbits(np.frombuffer(octets, np.uint8), bitorder="little")


def read_coefficients(octets, scales, counts, bits, mantissa):
    if bits is None:
        require((scales < 2).all())
        return np.frombuffer(octets, "<f4").astype(F32)
    top, shift = (1 << bits - 1) - 1, 23 - mantissa
    require((scales - 1 + top <= 0x7F7FFFFF >> shift).all())
    codes = []
    for at in range(0, len(counts), 8):  # strips
        strip, begin = sum(counts[at : at + 8]), packed_nbytes(sum(counts[:at]), bits)
        codes.append(unpack(octets[begin:], strip, bits, [(0, -(-strip // 8) * 8)]))
    code = np.concatenate([np.empty(0, np.int64), *codes])
    step = np.where(code > top, code - top, code) + np.repeat(scales, counts) - 1
    value = np.where(code > 0, step << shift, 0).astype(np.uint32).view(F32)
    return np.where(code > top, -value, value)


def read_places(octets, form, rice, kept, numel):
    """Which coefficients are sent."""
    if form == 0:
        require(kept == numel and not octets)
        return np.arange(numel)
    if form == 1:
        places = np.flatnonzero(read_bits(octets))
        require(len(octets) == 8 * -(-numel // 64))
    else:
        size = packed_nbytes(kept, rice)
        require(len(octets) >= size and (len(octets) - size) % 8 == 0)
        unary = read_bits(octets[size:])
        ones = np.flatnonzero(unary)
        require(len(ones) == kept and (not len(unary) or unary[-64:].any()))
        high = np.diff(ones, prepend=-1) - 1
        places = np.cumsum((high << rice) + unpack(octets[:size], kept, rice) + 1) - 1
    require(len(places) == kept and (not kept or places[-1] < numel))
    return places


# topk


def read_topk(payload, numel, settings, stream):
    require(len(payload) >= 8)
    kept, rice = int.from_bytes(payload[:7], "little"), payload[7]
    require(kept <= numel and rice < 16)
    bits, block = settings["bits"], settings["block"]
    num_blocks = -(-numel // block)
    sizes = [8, 2 * num_blocks, packed_nbytes(kept, bits)]
    require(len(payload) >= sum(sizes))
    levels, codes, gaps = (payload[a:b] for a, b in pairwise([*accumulate(sizes), len(payload)]))
    word = np.frombuffer(levels, "<u2").astype(np.int64)
    spoilt = word == 0xFF00
    mark, step = word >> 5, word & 31
    rise = np.where(step <= 16, step, 4 * step - 48)
    require((spoilt | (mark + rise <= 2039)).all() and (bits == 2 or not step.any()))
    places = read_places(gaps, 2, rice, kept, numel)
    code, values = unpack(codes, kept, bits), np.zeros(numel, F32)
    own = places // block
    level = (mark[own] + (code >> 1) * rise[own] << 20).astype(np.uint32).view(F32)
    values[places] += np.where(code & 1, -level, level)
    values[np.repeat(spoilt, block)[:numel]] = np.nan
    return values


# eden

CENTRES = {
    1: [0.7978845608028654],
    2: [0.452780034636492, 1.5104176084990954],
    3: [0.24509417894422167, 0.7560052812058773, 1.3439092785049999, 2.1519457045369873],
    4: [
        0.12839502985114701, 0.3880482994902902, 0.6567591185324634, 0.9423404564869614,
        1.2562311973471772, 1.6180463860218826, 2.0690172265313866, 2.732589570995163,
    ],
}  # fmt: skip


def read_eden(payload, numel, settings, stream):
    bits, block, values = settings["bits"], settings["block"], np.zeros(numel, F32)
    firsts = range(0, numel, block)
    sizes = [block if numel - p >= block else rotated_size(numel - p) for p in firsts]
    require(len(payload) == 4 * len(sizes) + sum(sizes) * bits // 8)
    scales = np.frombuffer(payload[: 4 * len(sizes)], "<f4").astype(F32)
    start = 4 * len(sizes)
    for first, size, scale in zip(firsts, sizes, scales, strict=True):
        stop = start + size * bits // 8
        code = unpack(payload[start:stop], size, bits)
        level = np.array(CENTRES[bits], F32)[code & (1 << bits - 1) - 1]
        y = np.where(code >> bits - 1, -level, level) * (scale * F32(2.0**-24))
        x = rotated_back(y, rotation_signs(stream, first, size, stream.counter[1] & 0xFF000000))
        values[first : first + size] = x[: numel - first] if np.isfinite(scale) else np.nan
        start = stop
    return values


def rotated_back(y, signs):
    x = butterflies(butterflies(y, 1) * signs[1], 16) * signs[0] * F32(2.0**26 / len(y))
    return np.clip(x, np.finfo(F32).min, np.finfo(F32).max)


def rotated_size(numel):
    return max(512, 1 << (numel - 1).bit_length())


def butterflies(y, distance):
    while distance < len(y):
        a, b = y.reshape(-1, 2, distance).swapaxes(0, 1)
        y, distance = np.stack((a + b, a - b), 1).reshape(-1), 2 * distance
    return y


def rotation_signs(stream, first, size, place):
    """1 or -1 for each value of a block, for both stages; `place` is rank and hop."""
    own = Stream.__new__(Stream)
    own.key, (tensor, _, step) = stream.key, stream.counter
    own.counter = (tensor, place, step)
    base = first // 4096 * 64
    words = np.concatenate(own.philox(np.arange(base, base + 64, dtype=np.uint64)))
    tile = first % 4096 // 512
    words = words.reshape(8, 2, 1, 16)[tile : tile + size // 512].astype(np.int64)
    bits = words >> np.arange(32).reshape(32, 1) & 1
    return (1 - 2 * bits).astype(F32).swapaxes(0, 1).reshape(2, size)


# thc


def read_thc(payload, numel, settings, stream):
    bits, block, values = settings["bits"], settings["block"], np.zeros(numel, F32)
    firsts = range(0, numel, block)
    sizes = [block if numel - p >= block else rotated_size(numel - p) for p in firsts]
    require(len(payload) == 4 * len(sizes) + sum(sizes) * bits // 8)
    scales = np.frombuffer(payload[: 4 * len(sizes)], "<f4").astype(F32)
    stream.numel = sum(sizes)
    random, start = stream.bits(), 4 * len(sizes)
    for first, size, scale in zip(firsts, sizes, scales, strict=True):
        stop = start + size * bits // 8
        code = unpack(payload[start:stop], size, bits)
        dither = -(1 + 2 * random[first : first + size]).astype(F32) * F32(2.0**-17)
        unit = scale * F32(2 / (2**bits - 1)) if not scale <= LEAST else F32(0)
        y = ((code - 2 ** (bits - 1) + 1).astype(F32) + dither) * unit
        place = stream.counter[1] ^ 128 << 24
        x = rotated_back(y * F32(2.0**-18), rotation_signs(stream, first, size, place))
        values[first : first + size] = x[: numel - first] if np.isfinite(y).all() else np.nan
        start = stop
    return values


# lossless


def read_lossless(payload, numel, settings, stream):
    count = -(-numel // 16384)
    require(len(payload) >= 4 + 12 * count and payload[0] < 3 and payload[1:4] == bytes(3))
    kind = payload[0]
    require(stream.dtype in (0, kind))
    values, at = [np.zeros(0, np.int64)], 4 + 12 * count
    for chunk in range(count):
        head = struct.unpack_from("<BBH4H", payload, 4 + 12 * chunk)
        chunk_values, at = read_floats_of(
            head, payload, at, min(16384, numel - 16384 * chunk), kind
        )
        values.append(chunk_values)
    require(at == len(payload))
    patterns = np.concatenate(values)
    if kind == 0:
        return patterns.astype(np.uint32).view(F32)
    halves = patterns.astype(np.uint16)
    if kind == 1:
        return halves.view(np.float16).astype(F32)
    return (patterns << 16).astype(np.uint32).view(F32)


def read_floats_of(head, payload, at, numel, kind):
    """The patterns of a chunk, and where the next one begins."""
    centre, form, number, *escapes = head
    nbytes, mantissa, exponent = ((4, 23, 8), (2, 10, 5), (2, 7, 8))[kind]
    width, prior, first = form & 63, form >> 6, at
    require(number <= numel and width <= mantissa + 1 and prior <= 2)
    if number == 0 or prior == 2:
        require(centre == width == 0 and not any(escapes))

    def take(size):
        nonlocal at
        require(at + size <= len(payload))
        at += size
        return payload[at - size : at]

    if number == 0:
        return np.zeros(numel, np.int64), at
    is_coded = np.ones(numel, bool)
    if number < numel:
        flags = np.frombuffer(take(4 * -(-numel // 32)), np.uint8)
        flags = np.unpackbits(flags, bitorder="little")
        require(flags.sum() == number and not flags[numel:].any())
        is_coded = flags[:numel].astype(bool)
    if prior == 2:
        coded = np.frombuffer(take(number * nbytes), f"<u{nbytes}").astype(np.int64)
    else:
        word = read_words(take, number, width) << mantissa + 1 - width
        power = centre - read_ranks(take, [number, *escapes], prior) & 255
        require((power < 1 << exponent).all())
        sign, low = word >> mantissa, word & (1 << mantissa) - 1
        coded = sign << 8 * nbytes - 1 | power << mantissa | low
    take(-(at - first) % 4)
    patterns = np.zeros(numel, np.int64)
    patterns[is_coded] = coded
    return patterns, at


def read_words(take, number, width):
    word, shift = np.zeros(number, np.int64), 0
    for size, dtype in ((16, "<u2"), (8, "<u1")):
        if width & size:
            part = np.frombuffer(take(number * size // 8), dtype)
            word |= part.astype(np.int64) << shift
            shift += size
    return word | read_one_tile(take, number, width % 8) << shift


def read_one_tile(take, number, width):
    size = -(-number // 8) * 8
    return unpack(take(width * size // 8), number, width, [(0, size)])


LADDERS = (
    ([[0, 1, 2], [255, 3, 4], [254, 5, 6], [253, 7, 8]], 2),
    ([[*range(15)], [255, 254, 253, 252, 251, *range(15, 25)]], 4),
)


def read_ranks(take, counts, prior):
    levels, width = LADDERS[prior]
    require(not any(counts[len(levels) + 1 :]))
    require(all(a >= b for a, b in pairwise(counts)))
    codes = [read_one_tile(take, count, width) for count in counts[: len(levels)]]
    ranks = np.frombuffer(take(counts[len(levels)]), np.uint8).astype(np.int64)
    for code, level in zip(codes[::-1], levels[::-1], strict=True):
        is_open = code == len(level)
        require(is_open.sum() == len(ranks))
        filled = np.array([*level, 0])[code]
        filled[is_open] = ranks
        ranks = filled
    return ranks


PAYLOADS = {
    "none": read_floats("<f4"),
    "fp16": read_floats("<f2"),
    "bf16": read_floats("<u2"),
    "lossless": read_lossless,
    "qsgd": read_qsgd,
    "dqsg": read_dqsg,
    "ndqsg": read_ndqsg,
    "eden": read_eden,
    "global-qsgd": read_global_qsgd,
    "thc": read_thc,
    "fft": read_fft,
    "topk": read_topk,
}
