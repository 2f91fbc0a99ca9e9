"""The tables of docs/codecs/global_qsgd.md: `python benchmarks/global_qsgd_tables.py`."""

import math
import time

import torch

import gradwire as gw

NUMEL = 25_600_000
WORLDS = (2, 4, 8, 16, 64)


def gaussian(world, numel, correlation):
    """Vectors of unit variance with a common part."""
    generator = torch.Generator().manual_seed(world)
    common = torch.randn(numel, generator=generator)
    rows = torch.randn(world, numel, generator=generator)
    return list(math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rows)


def error(codec, vectors, draws=3):
    """Mean squared error of the mean over its mean square."""
    mean = torch.stack(vectors).double().mean(0)
    total = 0.0
    for step in range(draws):
        got = gw.simulate(codec, vectors, gw.Key(step=step)).double()
        total += float((got - mean).square().sum() / mean.square().sum())
    return total / draws


def print_errors():
    codecs = {
        "qsgd 4 bits": gw.QSGD(bits=4),
        "linear 4 bits": gw.GlobalQSGD(bits=4),
        "subtractive 4 bits": gw.GlobalQSGD(bits=4, dither="subtractive"),
        "exponential 8 bits": gw.GlobalQSGD(bits=8, dither="exponential"),
    }
    numel = 200_000
    print("| correlation | workers | " + " | ".join(codecs) + " |")
    print("|---" * (2 + len(codecs)) + "|")
    for correlation in (0.0, 0.5, 0.99):
        for world in WORLDS:
            vectors = gaussian(world, numel, correlation)
            cells = [f"{error(codec, vectors):.4f}" for codec in codecs.values()]
            print(f"| {correlation} | {world} | " + " | ".join(cells) + " |")


def sent_bits(codec, world, collective):
    """Bits that a worker sends for each value, norms included."""
    numel, share = 512_000, (world - 1) / world
    norms = 32 / 512 * (world - 1 if world <= 8 else 2 * share)
    if collective == "all_reduce":
        return norms + 2 * share * 8 * codec.network_adder(world).code_nbytes(numel) / numel
    adder = codec.adder(world)
    code, total = 8 * adder.code_nbytes(numel) / numel, 8 * adder.total_nbytes(numel) / numel
    return norms + (code if world == 2 else share * (code + total))


def print_sizes():
    for collective in ("code_reduce", "all_reduce"):
        print(f"{collective}:")
        print("| workers | " + " | ".join(f"{bits} bits" for bits in range(2, 9)) + " |")
        print("|---" * 8 + "|")
        for world in WORLDS:
            codecs = [gw.GlobalQSGD(bits=bits) for bits in range(2, 9)]
            sizes = [sent_bits(codec, world, collective) for codec in codecs]
            print(f"| {world} | " + " | ".join(f"{size:.2f}" for size in sizes) + " |")


def best(run, rounds=7):
    """Gvalues/s of the fastest round, by the thread's own clock: others may use the machine."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return NUMEL / min(times) / 1e9


def speeds(codec, x, y, world):
    """Norms, codes, a payload, the total of all workers' codes, and what it decodes to."""
    key, adder = gw.Key(), codec.adder(world, codec.statistics(x))
    codes = torch.zeros(world, adder.code_nbytes(NUMEL), dtype=torch.uint8)
    total = torch.zeros(adder.total_nbytes(NUMEL), dtype=torch.uint8)
    payload = torch.zeros(codec.max_nbytes(NUMEL), dtype=torch.uint8)
    yield best(lambda: codec.statistics(x))
    yield best(lambda: adder.encode(x, codes[0], key))
    yield best(lambda: codec.encode_into(x, payload, key))
    yield best(lambda: adder.add(codes, total, NUMEL, key))
    yield best(lambda: adder.decode(total, y, key))


def print_speeds(world=4):
    torch.set_num_threads(1)
    x = torch.randn(NUMEL)
    y = x.clone()
    print(f"| codec | norms | encode | encode a payload | add those of {world} | decode | memcpy |")
    print("|---" * 7 + "|")
    for dither, bits in (("linear", 4), ("subtractive", 4), ("exponential", 4), ("exponential", 8)):
        codec = gw.GlobalQSGD(bits=bits, dither=dither)
        cells = [*speeds(codec, x, y, world), best(lambda: y.copy_(x))]
        print(f"| {dither}, {bits} bits | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    print_errors()
    print_sizes()
    print_speeds()
