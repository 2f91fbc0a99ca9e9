"""What calls of the GPU kernels would launch, caught on a machine without a GPU, and compiled.

While `caught` is entered, kernels are called with tensors on the CPU, and each launch is handed
over instead of being started. `variant_of` asks Triton what it would compile for that launch on a
device: types, constants, and what it knows of arguments, such as how far they are aligned.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from gradwire.kernels.gpu.compiler import EXACT, THREADS, registers

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}


class Launch(NamedTuple):
    """A function with its arguments, and how many programs of it are to start."""

    function: Any
    given: dict[str, Any]
    programs: int


class Variant(NamedTuple):
    """A function with the types of its arguments, its constants, and what is known of the rest."""

    name: str
    function: Any
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    known: tuple[tuple[tuple[int, ...], tuple[tuple[str, int], ...]], ...]


@contextlib.contextmanager
def caught(take: Callable[[Launch], None]) -> Iterator[None]:
    """Hand every launch to `take` instead of starting it."""

    def instead(function: Any, *args: Any, grid: Any, warmup: bool, **rest: Any) -> None:
        given = dict(zip(function.arg_names, args, strict=False)) | rest
        given = {name: given[name] for name in function.arg_names}
        take(Launch(function, given, grid[0]))

    run, JITFunction.run = JITFunction.run, instead
    try:
        yield
    finally:
        JITFunction.run = run


def variant_of(launch: Launch, target: GPUTarget) -> Variant:
    """What Triton would compile for a launch."""
    function, backend = launch.function, _backend(target)
    bound, special, options = _binder(function, target)(**launch.given)
    _, types, constants, known = function._pack_args(backend, {}, bound, special, options)
    return Variant(
        function.fn.__name__.removeprefix("_"),
        function,
        tuple(types.items()),
        tuple((function.arg_names[at], value) for (at,), value in constants.items()),
        tuple((at, tuple(map(tuple, facts))) for at, facts in known.items()),
    )


@lru_cache
def _backend(target: GPUTarget) -> Any:
    return make_backend(target)


@lru_cache(None)
def _binder(function: Any, target: GPUTarget) -> Any:
    return create_function_from_signature(function.signature, function.params, _backend(target))


def compiled(variant: Variant, target: GPUTarget, **options: Any) -> Any:
    """What Triton makes of it."""
    known = {at: list(map(list, facts)) for at, facts in variant.known}
    source = ASTSource(variant.function, dict(variant.types), dict(variant.constants), known)
    room = registers(variant.function) if target.backend == "cuda" else {}
    options = {"num_warps": THREADS // target.warp_size, **EXACT, **room, **options}
    return triton.compile(source, target=target, options=options)
