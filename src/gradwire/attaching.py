"""`attach`, the same call for every kind of data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from torch.nn.parallel import DistributedDataParallel

from gradwire import ddp
from gradwire.codec import Codec
from gradwire.handle import Handle

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from gradwire import sharded


@overload
def attach(module: DistributedDataParallel, codec: Codec, **options: Any) -> Handle: ...
@overload
def attach(module: FSDPModule, codec: Codec, **options: Any) -> sharded.Handle: ...


def attach(module: Any, codec: Codec, **options: Any) -> Handle | sharded.Handle:
    """Reduce the gradients of `module` through `codec`. Call it once, on every rank alike.

    A `DistributedDataParallel` module takes the options of `gradwire.ddp.attach`, one that
    `fully_shard` was called on those of `gradwire.fsdp.attach`. All take `error_feedback`,
    `min_numel` and `seed`.
    """
    if isinstance(module, DistributedDataParallel):
        return ddp.attach(module, codec, **options)
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # slow to import

    from gradwire import fsdp

    if isinstance(module, FullyShardedDataParallel):
        raise TypeError(
            "`attach` takes FSDP2, got a module wrapped in FullyShardedDataParallel, which is "
            "FSDP1; call `torch.distributed.fsdp.fully_shard` on the model instead."
        )
    if isinstance(module, FSDPModule):
        return fsdp.attach(module, codec, **options)
    return ddp.attach(module, codec, **options)
