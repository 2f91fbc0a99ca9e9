"""gpt-char: what the model may see, what the workers get to read, and a real run of it."""

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.lab.data import batches
from gradwire.lab.gpt import bits_per_character, next_character_loss, small_gpt
from gradwire.lab.optimizers import sgd, warm_up_and_cosine
from gradwire.lab.tasks import TASKS
from gradwire.lab.text import CONTEXT, NUM_CODES, OTHER, load_text, windows

MIN_NUMEL = 10_000  # what `gw.attach` sends raw is smaller
PANGRAM = "the quick brown fox jumps over the lazy dog\n"


def codes(batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, NUM_CODES, (batch, CONTEXT), generator=generator)


def test_every_matrix_is_encoded_and_all_else_is_raw() -> None:
    parameters = list(small_gpt().parameters())
    assert 2_000_000 < sum(p.numel() for p in parameters) < 4_000_000
    for parameter in parameters:
        assert (parameter.dim() == 2) == (parameter.numel() >= MIN_NUMEL)
        assert parameter.dim() == 1 or parameter.numel() >= 16_384


def test_a_later_character_changes_no_earlier_logits() -> None:
    model, before = small_gpt(), codes(2)
    logits = model(before)
    assert logits.shape == (2, CONTEXT, NUM_CODES)
    for place in (1, CONTEXT // 2, CONTEXT - 1):
        after = before.clone()
        after[:, place] = (after[:, place] + 1) % NUM_CODES
        changed = model(after)
        torch.testing.assert_close(changed[:, :place], logits[:, :place])
        assert (changed[:, place:] - logits[:, place:]).abs().amax(2).min() > 1e-4


def test_the_order_of_earlier_characters_matters() -> None:
    model, before = small_gpt(), torch.arange(CONTEXT).unsqueeze(0)
    swapped = before.clone()
    swapped[0, :2] = before[0, :2].flip(0)
    assert not torch.allclose(model(before)[0, -1], model(swapped)[0, -1])


def test_bits_per_character_are_the_loss_over_ln_2() -> None:
    logits = torch.randn(3, CONTEXT, NUM_CODES, generator=torch.Generator().manual_seed(0))
    bits = bits_per_character(logits, codes(3))
    assert bits.shape == (3,)
    loss = next_character_loss(logits, codes(3)).item()
    assert bits.mean().item() == pytest.approx(loss / math.log(2), rel=1e-6)


def test_the_help_topics_are_enough_and_the_last_tenth_is_held_out() -> None:
    text = load_text()
    train, test = len(text.train), len(text.test)
    assert train * CONTEXT > 200_000
    assert abs(test - train / 9) < 2
    for split in (text.train, text.test):
        assert torch.equal(split.inputs[:, 1:], split.targets[:, :-1])
        assert (split.targets < NUM_CODES).all()
    assert (text.train.inputs == OTHER).float().mean() < 0.01


def test_windows_are_consecutive_and_never_cross_into_the_test(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("a" * 1800 + "b" + "a" * 199)
    text = load_text(file)
    assert text.train.inputs.unique().tolist() == text.train.targets.unique().tolist() == [0]
    assert text.test.inputs.flatten()[:2].tolist() == [OTHER, 0]
    numbers = windows(torch.arange(3 * CONTEXT + 1), CONTEXT)
    assert torch.equal(numbers.inputs.flatten(), torch.arange(3 * CONTEXT))


def test_ranks_read_different_windows_and_every_run_the_same() -> None:
    train = load_text().train
    of = partial(batches, train, 8, num_workers=4)
    first = [next(of(seed=0, rank=rank))[0] for rank in range(4)]
    assert len({tuple(window.tolist()) for batch in first for window in batch}) == 32
    assert all(torch.equal(first[rank], next(of(seed=0, rank=rank))[0]) for rank in range(4))
    assert not torch.equal(first[0], next(of(seed=1, rank=0))[0])
    steps = of(seed=0, rank=0)
    assert not torch.equal(next(steps)[0], next(steps)[0])


def test_the_most_frequent_characters_get_codes_and_the_rest_share_one(tmp_path: Path) -> None:
    file = tmp_path / "text"
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
    file.write_text(rare + PANGRAM * 1000, encoding="utf-8")
    text = load_text(file)
    assert (text.train.inputs == OTHER).sum() > 0
    assert not (text.test.inputs == OTHER).any()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"short", r"text has 5 characters, but at least 650 are needed"),
        (b"\xff" * 2000, r"text is not UTF-8"),
        ("".join(map(chr, range(0x4E00, 0x4E00 + 2000))).encode(), r"too many different char"),
    ],
)
def test_a_text_of_no_use_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        load_text(file)


def test_a_python_without_help_topics_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"give a text of your own: `--data FILE`"):
        load_text()


def test_the_learning_rate_warms_up_and_ends_near_zero() -> None:
    rates = [warm_up_and_cosine(step, 100) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert max(rates) == 1
    assert 0 < rates[-1] < 0.01
    assert warm_up_and_cosine(0, 1) == 1


def test_the_digits_are_trained_as_before() -> None:
    assert all(TASKS[name].optimize is sgd for name in ("mnist-cnn", "mnist-fc"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A short run on a text that is learned at once."""
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "text").write_text(PANGRAM * 200)
    size = ["--data", str(folder / "text"), "--steps", "24", "--batch", "2"]
    command = [sys.executable, "-m", "gradwire", "train", "-t", "gpt-char", "-w", "2", *size]
    codecs = ["-c", "none", "-c", "qsgd:bits=4", "--report", str(folder / "report")]
    done = subprocess.run(
        [*command, *codecs, "--json", "-"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "lower is better" in done.stderr
    assert "lower is better" in (folder / "report" / "index.html").read_text()
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_workers_train_it_with_any_codec(results: list[dict[str, Any]]) -> None:
    none, qsgd = results
    assert none["curve"][0]["loss"] == qsgd["curve"][0]["loss"]
    for result in results:
        assert (result["task"], result["higher_is_better"]) == ("gpt-char", False)
        assert result["bits_per_character"] == pytest.approx(result["loss"] / math.log(2), rel=1e-5)
        assert result["loss"] < 0.75 * result["curve"][0]["loss"]
    assert none["bytes_per_step"] == 4 * none["parameters"]
    assert qsgd["ratio"] < 0.14
