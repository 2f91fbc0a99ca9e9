"""Where a server and its workers find each other: a TCPStore of the server, at an address.

The store only brings them together. What they say to each other goes over gloo.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

JOINS = "gradwire/async/joins"
"""How many have asked to join: who adds 1 to it has the number that comes out as a rank."""
STORE_S = 30.0


class Address(NamedTuple):
    """A host, by name or number, and a port; 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "host:port".

        >>> Address.parse("10.0.0.1:29600")
        Address(host='10.0.0.1', port=29600)
        """
        found = (
            re.fullmatch(r"\[?([^\s\[\]]+?)\]?:(\d{1,5})", text) if isinstance(text, str) else None
        )
        if found is None or int(found[2]) >= 1 << 16:
            raise ValueError(f'`address` must be such as "10.0.0.1:29600", got {text!r}.')
        return cls(found[1], int(found[2]))


def open_store(address: Address) -> tuple[Store, Address]:
    """That of a server, and where it is. Raises `OSError` if the address cannot be had."""
    timeout = timedelta(seconds=STORE_S)
    try:
        store = TCPStore(*address, is_master=True, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise OSError(f"no server can be at {address}: {error}") from error
    store.set(JOINS, "0")
    return store, address._replace(port=store.port)


def find_store(address: Address, seconds: float) -> Store:
    """That of the server at `address`, if it is there within so many seconds."""
    return TCPStore(*address, is_master=False, timeout=timedelta(seconds=seconds))


def room_of(store: Store, rank: int) -> Store:
    """The part of it where a worker and its gate meet."""
    return PrefixStore(f"gradwire/async/{rank}", store)
