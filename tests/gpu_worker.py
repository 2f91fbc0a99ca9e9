"""The GPU kernels in Triton's interpreter: prints what was found as JSON.

    TRITON_INTERPRET=1 python tests/gpu_worker.py [calls of each length] [kernel ...]

A process of its own, because Triton looks at the variable when it is imported. A number of 0 makes
every call of `kernel_calls`, which takes more than an hour.
"""

import json
import sys
import warnings

import torch

import gpu_mutants
from gpu_interpreter import Watch, framed
from gradwire.kernels import gpu, reference
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import num_blocks, packed_nbytes
from gradwire.lab.selftest import kernel_calls
from gradwire.lab.selftest.kernel_calls.table import TABLE, call
from gradwire.lab.selftest.kernel_calls.values import KEY, finite, vectors

GROUP = 4096
"""The values of a program; of so many, no group is ragged."""
LENGTHS = [*kernel_calls.LENGTHS, GROUP]
LONG = (513, 5003)
"""Lengths of more calls, and the only ones for floats of 16 bits, when not every call is made."""
SERIAL = {"project", "row_products", "column_products", "orthonormalize"}
"""They add values one after the other, which takes the interpreter long: 1500 will do."""


def tensors(values):
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors(value)


def framed_args(values, frames):
    if isinstance(values, torch.Tensor):
        frames.append(framed(values))
        return frames[-1].tensor
    if not isinstance(values, (tuple, list)):
        return values
    make = getattr(values, "_make", type(values))  # of a named tuple
    return make([framed_args(value, frames) for value in values])


def outcome(kernel, case, watched=Watch.entered):
    """The bytes of all that a call was given and has made of it; it touches nothing else."""
    frames = []
    args = framed_args(case.args, frames)
    with watched(Watch([frame.tensor for frame in frames])):
        said = kernel(*args, **case.how)
    assert all(frame.is_whole() for frame in frames), "a canary is dead"
    if isinstance(said, torch.Tensor) and said.dtype == torch.bool:
        said = bool(said)  # it would stay on a GPU
    if said is False:  # damaged: what has been written is not defined
        return [False]
    octets = [x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
              for x in tensors((args, said))]  # fmt: skip
    return [None if isinstance(said, torch.Tensor) else said, *octets]


def complaint(name, case, watched=Watch.entered):
    """What is wrong with one call of a kernel that is run so; None if nothing is."""
    expected = outcome(getattr(reference, name), case)
    try:
        got = outcome(getattr(gpu, name), case, watched)
    except Exception as error:  # what runs it wraps those of the checker
        return repr(error)
    return None if got == expected else "other bits than the reference"


def chosen(name, dtype, numel, count):
    """`count` calls of a length, others for every length; all of them if it is 0."""
    calls = list(TABLE[name].calls(numel, dtype))
    if not count:
        return calls
    many = numel in LONG and dtype == torch.float32 and len(calls) > 9
    count = 3 * count if many else count
    step = max(len(calls) // count, 1)
    return calls[(LENGTHS.index(numel) * 7 + 1) % step :: step][:count]


def failure(name, count):
    """What is wrong with a kernel, None if nothing is."""
    for dtype in TABLE[name].dtypes:
        few = count and dtype != torch.float32
        for numel in LONG if few else LENGTHS:
            if count and name in SERIAL and numel > 1500:
                continue
            for case in chosen(name, dtype, numel, count):
                wrong = complaint(name, case)
                if wrong:
                    return f"{dtype}, {numel} values, {case.how}: {wrong}"
    return None


def failure_of_folding():
    """What is wrong with scales of blocks of more tiles than one launch takes, here four."""
    few = gpu_mutants.tl.constexpr(4)
    with gpu_mutants.replaced("scales", "_LAST", few):
        for x in vectors(100 * 512 + 7):
            for block, norm in ((None, "l2"), (None, "max"), (45 * 512, "l2")):
                room = torch.empty(num_blocks(x.numel(), block))
                wrong = complaint("block_scales", call(x, room, block=block, norm=norm))
                if wrong:
                    return f"{block}, {norm}: {wrong}"
    return None


def failure_of_damage():
    """Which kernel takes something damaged for whole; None if none does."""
    for name in ("add_spectra", "gap_decode"):
        cases = list(TABLE[name].calls(65, torch.float32))
        refused = [case for case in cases if outcome(getattr(reference, name), case) == [False]]
        assert refused
        if any(complaint(name, case) for case in refused):
            return name
        if name == "add_spectra" and not all(map(is_spoilt, refused)):
            return "what is damaged is not NaN"
    return None


def is_spoilt(case):
    """Is there a NaN where a block is damaged, so that nobody need ask?"""
    kept, out = framed_args(case.args, [])
    gpu.add_spectra(kept, out, **case.how)
    is_behind_all = kept[-1].bitmap[-1] & 0x80  # where no block is
    return bool(out.isnan().any() | is_behind_all)


def traffic():
    """Bytes that are read and written, for each argument: [read, written, its size]."""
    how = {"levels": 7, "width": 4, "block": 512}
    x, scales = finite(2 * GROUP), torch.empty(16)
    codes = torch.empty(packed_nbytes(x.numel(), 4), dtype=torch.uint8)
    reference.quantize(x, scales, codes, norm="max", key=KEY, **how)
    debt = Debt(torch.empty_like(x), finite(2 * GROUP, seed=1), torch.tensor([0.3, 0.7]))
    peers = [scales.clone() for _ in range(3)], [codes.clone() for _ in range(3)]
    cases = {
        "quantize": call(x, scales, codes, norm="max", key=KEY, **how),
        "owing": call(x, scales, codes, debt, norm="max", key=KEY, **how),
        "dequantize_mean": call(*peers, torch.empty_like(x), **how),
        "quantize_rotated": call(x, scales, codes, bits=4, block=512, key=KEY),
        "dequantize_rotated": call(*peers, torch.empty_like(x), bits=4, block=512, key=KEY),
    }
    found = {}
    for name, case in cases.items():
        frames = []
        args = framed_args(case.args, frames)
        with Watch([frame.tensor for frame in frames]).entered() as watch:
            getattr(gpu, "quantize" if name == "owing" else name)(*args, **case.how)
        found[name] = [[watch.read[x.data_ptr()], watch.written[x.data_ptr()], x.nbytes]
                       for x in tensors(args)]  # fmt: skip
    return found


def main():
    warnings.simplefilter("ignore")  # of NumPy, where values overflow as they should
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # `torch.empty` gives NaN
    count = int(sys.argv[1]) if sys.argv[1:] else 1
    report = {"failures": {name: failure(name, count) for name in sys.argv[2:] or gpu.__all__}}
    if not sys.argv[2:]:
        report["mutants"] = gpu_mutants.caught(complaint)
        report["rounding"] = gpu_mutants.is_rounded_to_nearest()
        report["folding"] = failure_of_folding()
        report["damage"] = failure_of_damage()
        report["traffic"] = traffic()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
