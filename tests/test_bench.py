"""The benchmark: its rows hang together. Speeds themselves are never tested."""

import io
import time

import pytest
import torch
from rich.console import Console

from gradwire.cli.bench import CODECS, table
from gradwire.codecs import REGISTRY, parse
from gradwire.kernels.cpu import threads
from gradwire.lab.bench import Bench, Row, Setup, eager_qsgd

FIELDS = {
    "codec", "numel", "threads", "encode_gvps", "decode_gvps", "memcpy_gvps", "encode_vs_memcpy",
    "decode_vs_memcpy", "eager_gvps", "bits_per_value", "nmse",
}  # fmt: skip


def prepare(*specs: str, **changes) -> Bench:
    defaults = {
        "numel": 70_001, "threads": 1, "dtype": "float32", "repeat": 2, "seconds": 0, "seed": 3
    }  # fmt: skip
    return Bench(Setup(specs, **(defaults | changes)))


def measure(*specs: str, **changes) -> list[Row]:
    bench = prepare(*specs, **changes)
    list(bench.run())
    return bench.rows()


def test_a_row_for_every_codec_as_it_was_typed():
    specs = [*CODECS, "qsgd:levels=7"]
    assert [row.codec for row in measure(*specs)] == specs


def test_every_codec_is_measured_by_default():
    assert {parse(spec).name for spec in CODECS} == set(REGISTRY)


def test_a_codec_that_learns_is_measured_in_its_compress_phase():
    """Random axes keep their share of noise: one in eight, and the 369 values of the tail."""
    (row,) = measure("gradiveq:inner=none")
    assert row.bits_per_value == 32 * (136 * 64 + 369) / 70_001
    assert abs(row.nmse - 7 / 8) < 0.01


def test_ratios_are_quotients():
    (row,) = [row.to_json() for row in measure("qsgd:bits=4")]
    assert row.keys() >= FIELDS
    assert row["encode_vs_memcpy"] == row["encode_gvps"] / row["memcpy_gvps"]
    assert row["decode_vs_memcpy"] == row["decode_gvps"] / row["memcpy_gvps"]
    assert row["encode_vs_eager"] == row["encode_gvps"] / row["eager_gvps"]
    assert min(row[name] for name in FIELDS if name.endswith("_gvps")) > 0


def test_bits_and_error_are_those_of_the_codec():
    none, half, packed, coded = measure("none", "fp16", "qsgd:bits=4", "qsgd:bits=4,wire=zstd")
    assert (none.bits_per_value, none.nmse) == (32, 0)
    assert half.bits_per_value == 16
    assert 0 < half.nmse < 2.0**-22
    assert packed.bits_per_value == 8 * (35_004 + 4 * 137) / 70_001
    assert coded.bits_per_value < packed.bits_per_value
    assert coded.nmse == packed.nmse
    assert 0.03 < packed.nmse < 0.04


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("numel", [1, 511, 513])
def test_any_type_and_length(dtype, numel):
    for row in measure("none", "qsgd:bits=8", numel=numel, dtype=dtype):
        assert (row.numel, row.dtype) == (numel, dtype)
        assert row.nmse < 1e-3


def test_only_speeds_differ_between_runs():
    first, second = (measure("qsgd:bits=2,block=128")[0] for _ in range(2))
    assert (first.bits_per_value, first.nmse) == (second.bits_per_value, second.nmse)
    assert measure("qsgd:bits=2,block=128", seed=4)[0].nmse != first.nmse


def test_at_least_so_many_rounds_and_so_long():
    assert len(list(prepare("none", repeat=5).run())) == 5
    bench = prepare("none", repeat=1, seconds=0.3)
    start = time.perf_counter()
    done = list(bench.run())
    assert time.perf_counter() - start >= 0.3
    assert done == sorted(done)
    assert len(done) > 1


def test_threads_are_given_back():
    before = torch.get_num_threads(), threads.get_num_threads()
    rounds = prepare("none", threads=3).run()
    next(rounds)
    assert (torch.get_num_threads(), threads.get_num_threads()) == (3, 3)
    list(rounds)
    assert (torch.get_num_threads(), threads.get_num_threads()) == before


def test_eager_baseline_is_qsgd():
    """It must earn the comparison: unbiased, and with the error of `qsgd:bits=4`."""
    x = torch.randn(400, 512, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)  # not that of the data, or rounding would not be independent of it
    norm, codes = eager_qsgd(x, 7)
    error = codes * (norm / 7) - x
    assert codes.abs().max() == 7
    assert abs(error.mean()) < 5 * error.std() / x.numel() ** 0.5
    assert 0.03 < error.square().sum() / x.square().sum() < 0.04


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_every_table_names_its_codecs_at_any_width(width):
    rows = [Row(codec, 5000, 1, "float32", 0.1, 0.2, 3.0, 0.05, 4.0, 0.1) for codec in CODECS]
    out = Console(width=width, file=io.StringIO(), color_system=None)
    out.print(table(rows))
    *tables, caption = out.file.getvalue().split("\n\n")
    assert "1 thread, best" in " ".join(caption.split())
    assert "".join(tables).count("memcpy") == 3
    for shown in tables:
        assert max(map(len, shown.splitlines())) <= width
        names = "".join(shown.split())  # those that are broken are whole again
        assert all(codec in names for codec in CODECS)
        starts = [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")]
        assert [s for s in starts if s in ("none", "dqsg", "fft")] == ["none", "dqsg", "fft"]
