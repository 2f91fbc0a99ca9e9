"""Compressed collectives without DDP."""

from __future__ import annotations

import warnings
import zlib
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec, check_input
from gradwire.codecs import as_codec
from gradwire.collectives.parts import Part
from gradwire.key import Key
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.rehearsal import check_sizes
from gradwire.reduction.streams import check_seed
from gradwire.transport.executor import Inline
from gradwire.transport.gpu import device_for
from gradwire.transport.link import Link

_steps: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def all_reduce(
    tensor: Tensor,
    codec: Codec | str,
    group: dist.ProcessGroup | None = None,
    *,
    collective: str | None = None,
    seed: int = 0,
) -> Tensor:
    """Replace `tensor` by its mean over the workers of `group`, sent through `codec`.

    Every rank must call it with the same codec and shape. Calls are numbered, so that each draws
    fresh random bits, which no attachment draws, nor a call among other members. There is no error
    feedback: keep `tensor - result` yourself if you want it.

    Over NCCL the call returns when the work is queued on the current stream, as collectives of
    PyTorch do; a CUDA tensor over gloo is copied to the CPU and back, and the call waits for that.
    """
    check_input(tensor)
    codec = as_codec(codec)
    check_seed(seed)
    if isinstance(codec, AdaptiveCodec) and not codec.stands_alone:
        raise ValueError(
            f"{codec!r} learns over many steps, which `all_reduce` does not connect; use "
            "`attach`, or a codec without memory."
        )
    if not tensor.is_contiguous():
        raise ValueError("`tensor` must be contiguous, since it is reduced in place.")
    group = group or dist.group.WORLD
    assert group is not None
    device = device_for(group, tensor.device, beside=False)
    check_sizes(codec, device)
    link = Link(group, device)
    reducer = Reducer(
        link, codec, collective=collective, error_feedback=False, min_numel=0, seed=seed
    )
    doubts = codec.doubts_alone() if isinstance(codec, AdaptiveCodec) else None
    if doubts is not None and link.rank == 0:
        warnings.warn(doubts, stacklevel=2)
    key = next_key(group, seed)
    reducer.step = key.step
    _steps[group] = key.step + 1
    flat = tensor.detach().view(-1)
    part = Part(flat, key.tensor, name="tensor")
    reducer.submit(Inline(link), flat, [part], last=True).wait()
    return tensor


def next_key(group: dist.ProcessGroup, seed: int = 0) -> Key:
    """What the next call among `group` draws from: `simulate` gives its mean with this key."""
    return Key(seed=seed, step=_steps.get(group, 0), tensor=_number(group))


def _number(group: dist.ProcessGroup) -> int:
    """In place of the number of a parameter, one that none has, by the members of `group`."""
    members = ",".join(map(str, dist.get_process_group_ranks(group)))
    return 1 << 31 | zlib.crc32(members.encode()) >> 1
