"""Write messages.json anew. Only for a change of format that is meant: old messages break.

    python tests/golden/regenerate.py

Every example of the registry encodes the same 300 values, but for codecs that learn. They come from
integers and powers of two alone, because the last bit of a sine differs between machines. What a
message decodes to is kept as a digest.
"""

import hashlib
import json
from base64 import b64encode
from pathlib import Path

import torch
from torch import Tensor

import gradwire as gw
from gradwire.codecs import REGISTRY
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.powersgd import PowerSGD

PATH = Path(__file__).with_name("messages.json")
KEY = gw.Key(seed=2**40 + 3, step=7, tensor=5, rank=1, hop=1)


def values() -> Tensor:
    """300 values spread evenly over (-1, 1), then scaled by 1 to 2^-7."""
    i = torch.arange(300)
    even = (i * 2654435761 % 2**32 - 2**31).double() / 2**31
    return (even / 2.0 ** (i % 8)).float().view(3, 100)


def digest(tensor: Tensor) -> str:
    """SHA-256 of the values as little-endian float32."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def golden(spec: str) -> dict[str, str]:
    message = gw.encode(gw.parse(spec), values(), KEY)
    return {"message": b64encode(message).decode(), "decoded": digest(gw.decode(message))}


def main() -> None:
    examples = [spec for entry in REGISTRY.values() for spec in entry.examples]
    alone = [spec for spec in examples if not isinstance(gw.parse(spec), GradiVeQ | PowerSGD)]
    messages = {spec: golden(spec) for spec in alone}
    PATH.write_text(json.dumps(messages, indent=1) + "\n")


if __name__ == "__main__":
    main()
