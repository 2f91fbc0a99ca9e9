"""The tables of docs/codecs/dithered.md: error for each real bit, budgets, and speed.

python benchmarks/dithered_tables.py [error | budget | speed | nested]
"""

import sys
import time

import numpy as np
import torch

import gradwire as gw

KEY = gw.Key(seed=1)


def draw(kind, numel, seed=0):
    random = np.random.default_rng(seed)
    kinds = {
        "gaussian": random.standard_normal,
        "laplace": lambda n: random.laplace(size=n),
        "student-t3": lambda n: random.standard_t(3, n),
    }
    return torch.from_numpy(kinds[kind](numel).astype(np.float32))


def measure(codec, x):
    """Real bits per value, and the squared error relative to the squared values."""
    payload = codec.encode(x, KEY)
    error = codec.decode(payload, x.numel(), KEY).double() - x.double()
    return 8 * payload.numel() / x.numel(), float(error.square().sum() / x.double().square().sum())


def error_table(numel=4_000_000):
    specs = [
        "dqsg:step=1.2", "dqsg:step=0.5", "dqsg:step=0.265", "dqsg:bits_per_value=2.0",
        "dqsg:bits_per_value=3.0", "dqsg:bits_per_value=4.0", "dqsg:levels=1", "dqsg:levels=3",
        "dqsg:levels=7", "dqsg:levels=3,wire=zstd", "dqsg:levels=7,wire=zstd", "qsgd:bits=3",
        "qsgd:bits=4", "qsgd:bits=4,wire=zstd",
    ]  # fmt: skip
    print("| codec | data | bits | error |\n|---|---|---:|---:|")
    for kind in ("gaussian", "laplace", "student-t3"):
        x = draw(kind, numel)
        for spec in specs:
            bits, error = measure(gw.parse(spec), x)
            print(f"| `{spec}` | {kind} | {bits:.3f} | {error:.4g} |")


def budget_table():
    print("| data | values | budget | bits | missed by | error |\n|---|---:|---:|---:|---:|---:|")
    for kind in ("gaussian", "laplace", "student-t3"):
        for numel in (100_000, 4_000_000):
            x = draw(kind, numel)
            for budget in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0):
                bits, error = measure(gw.DQSG(bits_per_value=budget), x)
                miss = 100 * (bits / budget - 1)
                print(f"| {kind} | {numel} | {budget} | {bits:.3f} | {miss:+.1f} % | {error:.4g} |")


def best(*runs, rounds=9):
    """The least seconds of each of `runs`, taken in turn, so that all meet the same machine."""
    times = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def speed_table(numel=25_600_000):
    torch.set_num_threads(1)
    x, y = draw("gaussian", numel), torch.zeros(numel)
    print("| codec | encode, Gvalues/s | of memcpy | decode | of memcpy |")
    print("|---|---:|---:|---:|---:|")
    for spec in (
        "qsgd:bits=3", "dqsg:levels=1", "dqsg:levels=3", "dqsg:levels=7", "dqsg:step=1.2",
        "dqsg:step=0.265", "dqsg:bits_per_value=2.0", "ndqsg",
    ):  # fmt: skip
        codec = gw.parse(spec)
        room = torch.zeros(codec.max_nbytes(numel), dtype=torch.uint8)
        size = codec.encode_into(x, room, KEY)
        copy, encode, decode = best(
            lambda: y.copy_(x),
            lambda c=codec, r=room: c.encode_into(x, r, KEY),
            lambda c=codec, r=room, n=size: c.decode_into(r[:n], y, KEY),
        )
        cells = [f"{numel / t / 1e9:.2f} | {copy / t:.2f}" for t in (encode, decode)]
        print(f"| `{spec}` | {' | '.join(cells)} |")


def workers(world, numel, correlation, kind="gaussian"):
    """Vectors whose pairs have this correlation: a Gaussian part in common, and one of this law."""
    deviation = {"gaussian": 1, "laplace": 2**0.5, "student-t3": 3**0.5}[kind]
    common = draw("gaussian", numel, 99) * correlation**0.5
    own = (1 - correlation) ** 0.5 / deviation
    return [common + own * draw(kind, numel, rank) for rank in range(world)]


def estimate_table(numel=65_536):
    """What share of values nested payloads get wrong, and what is expected from such payloads."""
    room = torch.empty(numel)
    print("| workers | block | law | correlation | wrong | expected | ratio |")
    print("|---:|---|---|---:|---:|---:|---:|")
    for world, block in ((2, 512), (2, 64), (2, 4096), (4, 512), (7, 512)):
        codec, keys = (
            gw.NDQSG(levels=3, block=block, wire="packed"),
            [KEY.of(rank=rank) for rank in range(world)],
        )
        for kind in ("gaussian", "laplace", "student-t3"):
            for correlation in (0.5, 0.9, 0.95, 0.99):
                pairs = list(zip(workers(world, numel, correlation, kind), keys, strict=True))
                wrong, expected = (
                    code.mean_into([code.encode(*pair) for pair in pairs], room, keys)[0]
                    for code in (codec.plain, codec.nested)
                )
                ratio = f"{expected / wrong:.2f}" if wrong > 10 / numel else ""
                print(
                    f"| {world} | {block} | {kind} | {correlation} | {100 * wrong:.3f} % | "
                    f"{100 * expected:.3f} % | {ratio} |"
                )


def nested_table(world=4, numel=1_000_000):
    """The squared error of the mean, relative to the squared step of DQSG over 12 and workers."""
    keys = [KEY.of(rank=rank) for rank in range(world)]
    print("| block | correlation | expected wrong | error of NDQSG / DQSG | bits / DQSG's |")
    print("|---|---:|---:|---:|---:|")
    for block in (512, 4096, None):
        nested, plain = (
            gw.NDQSG(levels=3, block=block, wire="packed").nested,
            gw.DQSG(levels=3, block=block),
        )
        for correlation in (0.0, 0.5, 0.8, 0.9, 0.95, 0.99):
            vectors = workers(world, numel, correlation)
            mean = torch.stack(vectors).double().mean(0)
            pairs = list(zip(vectors, keys, strict=True))
            payloads = [nested.encode(x, key) for x, key in pairs]
            (rate,) = nested.mean_into(payloads, torch.empty(numel), keys)
            errors = [
                (gw.simulate(codec, vectors, KEY, "all_gather") - mean).square().mean().item()
                for codec in (nested, plain)
            ]
            sizes = sum(p.numel() for p in payloads), world * plain.encode(vectors[0], KEY).numel()
            print(
                f"| {block} | {correlation} | {100 * rate:.3f} % | {errors[0] / errors[1]:.2f} | "
                f"{sizes[0] / sizes[1]:.2f} |"
            )


if __name__ == "__main__":
    tables = {
        "error": error_table, "budget": budget_table, "nested": nested_table,
        "estimate": estimate_table, "speed": speed_table,
    }  # fmt: skip
    for name in sys.argv[1:] or tables:
        tables[name]()
        print()
