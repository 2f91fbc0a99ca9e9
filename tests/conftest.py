"""Shared fixtures: poisoned memory, and worlds of real gloo workers."""

from collections.abc import Iterator

import pytest
import torch

from world import World


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Torch's threads wait by spinning, which starves the workers of the other tests."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` gives NaN, or the largest integer: reading what was not written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def worlds() -> Iterator[dict[int, World]]:
    """Gloo worlds of 2, 3 and 4 processes, started when first used and kept for the session."""
    started = {size: World(size) for size in (2, 3, 4)}
    yield started
    for world in started.values():
        world.close()
