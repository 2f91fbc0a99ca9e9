"""Shared fixtures: poisoned memory, and worlds of real gloo workers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from beside import Beside
from world import World

SLOW = (
    "test_two_processors",
    "test_layouts",
    "test_lab",
    "test_report",
    "test_output",
    "test_integrations",
    "test_planner_page",
    "test_planner_probe",
    "test_what_is_counted_is_what_interfaces_send",
    "test_threads_do_not_change_the_bits",
    "test_all_reduce_is_near_the_mean_in_the_type_given",
    "test_compiled_kernels_are_kept_by",
)
"""Files and tests that `-m "not slow"` leaves out beside those that are marked where they stand."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW or item.name.startswith(SLOW):
            item.add_marker("slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        for beside in _besides(session):
            beside.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    for beside in _besides(session):
        beside.end()


def _besides(session: pytest.Session) -> set[Beside]:
    modules = {getattr(item, "module", None) for item in session.items}
    return {module.BESIDE for module in modules if hasattr(module, "BESIDE")}


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
def one_gatekeeper() -> Iterator[None]:
    """Asynchronous servers of this process share the process that their gates are forked from."""
    from gradwire.algorithms.asynchronous import server

    shared = server.Gatekeeper(["none", "qsgd:bits=4"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "Gatekeeper", lambda specs: _Kept(shared))
        yield
    shared.close()


class _Kept:
    """A gatekeeper that goes on when a server is closed."""

    def __init__(self, shared: Any) -> None:
        self.open = shared.open

    def close(self) -> None:
        return


@pytest.fixture(scope="session")
def worlds() -> Iterator[dict[int, World]]:
    """Gloo worlds of 2, 3 and 4 processes, started when first used and kept for the session."""
    started = {size: World(size) for size in (2, 3, 4)}
    yield started
    for world in started.values():
        world.close()
