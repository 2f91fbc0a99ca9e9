"""Text as windows of character codes: Python's own help topics, or a file.

The topics come from the running Python, whose text differs a little from version to version. The
number of codes does not: the model has the same shape, and its gradients the same size, for all.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from gradwire.lab.data import Dataset, Split

CONTEXT = 64  # characters in a window
NUM_CODES = 128
OTHER = NUM_CODES - 1  # the code that all characters without one of their own share
MAX_OTHER = 0.01
HELD_OUT = 10  # one part in so many, the last


def load_text(path: Path | None = None) -> Dataset:
    """Read the text in `path`, by default the help topics; the last tenth of it is for the test.

    The most frequent characters of the training text get codes.
    """
    name, text = ("pydoc_data.topics", _topics()) if path is None else (path, _read(path))
    cut = len(text) - len(text) // HELD_OUT
    if len(text) - cut <= CONTEXT:
        raise ValueError(
            f"{name} has {len(text)} characters, but at least {HELD_OUT * (CONTEXT + 1)} are "
            "needed: a tenth of them is held out, which must fill a window."
        )
    codes = _encode(text, _alphabet(text[:cut]))
    _check_covered(codes, name)
    return Dataset(windows(codes[:cut], CONTEXT), windows(codes[cut:], CONTEXT))


def windows(codes: Tensor, length: int) -> Split:
    """Cut `codes` into inputs that do not overlap; their targets are the same, one code later.

    So one pass over the windows is one pass over the text. What does not fill the last is left.

    >>> split = windows(torch.arange(8), 3)
    >>> split.inputs.tolist(), split.targets.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    return Split(codes[:-1].unfold(0, length, length), codes[1:].unfold(0, length, length))


def _topics() -> str:
    """Return the text behind Python's `help("topics")`, in the order of the topics' names."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python comes without `pydoc_data`, the text of its help topics; "
            "give a text of your own: `--data FILE`."
        ) from None
    return "\n".join(topics[name] for name in sorted(topics))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; `--data` must be a text file."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; `--data` must be a text file.") from None


def _alphabet(text: str) -> dict[str, int]:
    frequent = Counter(text).most_common(NUM_CODES - 1)
    return {character: code for code, (character, _) in enumerate(frequent)}


def _encode(text: str, alphabet: dict[str, int]) -> Tensor:
    return torch.tensor([alphabet.get(character, OTHER) for character in text])


def _check_covered(codes: Tensor, name: str | Path) -> None:
    """Bits per character would mean little if many characters were not told apart."""
    share = (codes == OTHER).float().mean().item()
    if share > MAX_OTHER:
        raise ValueError(
            f"{name} has too many different characters: {share:.1%} of its text is not among the "
            f"{NUM_CODES - 1} most frequent ones, at most {MAX_OTHER:.0%} may be."
        )
