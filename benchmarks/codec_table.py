"""Every codec at its defaults on the lab's tasks: score, bytes, and time to a target on two links.

    .venv/bin/python benchmarks/codec_table.py codecs.json --scores      # over loopback: an hour
    .venv/bin/python benchmarks/codec_table.py codecs.json --times       # on shaped links: minutes
    .venv/bin/python benchmarks/codec_table.py codecs.json --page docs/codecs/index.md

A link changes no bit of a training, so each is run once, over loopback, and says how many steps
the target takes; a few steps on the link say how long a step is. GradiVeQ has steps of several
kinds, so it is trained to the end on the link itself. PyTorch's own hooks stand beside the codecs.

`-t` and `-c` pick tasks and codecs. What was measured before stays in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_marks import Marks

TARGETS = {"mnist-cnn": 0.95, "mnist-fc": 0.93, "gpt-char": 2.8}
SCORES = dict.fromkeys(TARGETS, "accuracy") | {"gpt-char": "bits_per_character"}
LINKS = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
CODECS = [
    "none", "lossless", "fp16", "bf16", "qsgd", "dqsg", "ndqsg", "eden", "global-qsgd", "thc",
    "gradiveq", "powersgd", "fft", "topk",
]  # fmt: skip
PEERS = {
    "pytorch:hook=fp16": "PyTorch's fp16 hook",
    "pytorch:hook=powersgd": "PyTorch's PowerSGD, rank 4",
}
WAYS = [*CODECS, *PEERS]
PHASED = ("gradiveq",)
WORKERS, TIMED_STEPS = 4, 24
PEER_SCRIPT = str(Path(__file__).with_name("peers.py"))
MARKS = Marks("codec_table.py")

Found = dict[str, Any]
"""By task, then way: `score`, `bytes` of a step, `step` that reached the target, `steps`, and
by link `seconds` to the target."""


def main() -> None:
    options = parse_arguments()
    found: Found = json.loads(options.file.read_text()) if options.file.exists() else {}
    for task in options.task:
        if options.scores:
            found[task] = found.get(task, {}) | scores(task, options.codec)
            save(options.file, found)
        for link in LINKS if options.times else ():
            rows = {way: row for way, row in found[task].items() if way in options.codec}
            for way, seconds in times(task, link, rows).items():
                rows[way][link] = seconds
            save(options.file, found)
    section = "\n\n".join(table(task, rows) for task, rows in found.items())
    if options.page is None:
        print(section)
    else:
        MARKS.put(section, options.page)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("file", type=Path, help="where results are kept, as JSON")
    add("--scores", action="store_true", help="train every task with every codec, over loopback")
    add("--times", action="store_true", help="time steps on every link; needs scores")
    add("--page", metavar="FILE.md", type=Path, help="put the tables into this page")
    add("-t", "--task", action="append", choices=list(TARGETS), help="repeatable (default: all)")
    add("-c", "--codec", action="append", choices=WAYS, help="repeatable (default: all)")
    options = parser.parse_args()
    options.task, options.codec = options.task or list(TARGETS), options.codec or WAYS
    return options


def scores(task: str, ways: Sequence[str]) -> Found:
    """How good each becomes, what it sends, and when it reaches the target."""
    return {
        way: {
            "score": row[SCORES[task]],
            "bytes": row["bytes_per_step"],
            "steps": row["steps"],
            "step": row["reached"] and row["reached"]["step"],
        }
        for way, row in train(task, ways, "--eval-every", "10").items()
    }


def times(task: str, link: str, rows: Found) -> dict[str, float | None]:
    """Seconds to the target on a link, None if it is never reached."""
    steps = {way: row["step"] for way, row in rows.items() if row["step"] is not None}
    even = [way for way in steps if way not in PHASED]
    found: dict[str, float | None] = dict.fromkeys(rows)
    short = str(TIMED_STEPS)
    timed = train(task, even, "--steps", short, "--eval-every", short, "--link", link)
    found |= {way: row["step_s"] * steps[way] for way, row in timed.items()}
    phased = train(task, [way for way in steps if way in PHASED], "--link", link)
    return found | {way: row["reached"]["seconds"] for way, row in phased.items()}


def train(task: str, ways: Sequence[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """What `gradwire train` finds; it shows its progress itself."""
    codecs = [way for way in ways if way not in PEERS]
    peers = [way for way in ways if way in PEERS]
    found = _run([sys.executable, "-m", "gradwire"], task, codecs, "codec", arguments)
    if "--link" not in arguments:
        arguments = (*arguments, "--link", "10gbit")
    return found | _run([sys.executable, PEER_SCRIPT], task, peers, "algorithm", arguments)


def _run(
    command: list[str], task: str, ways: Sequence[str], kind: str, arguments: Sequence[str]
) -> dict[str, dict[str, Any]]:
    if not ways:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [*command, "train", "-t", task, "-w", str(WORKERS), "--json", str(file)]
        command += ["--target", str(TARGETS[task]), *arguments]
        if kind == "algorithm":
            command += ["--codec", "none"]
        for way in ways:
            command += [f"--{kind}", way]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {row[kind]: row for row in json.loads(file.read_text())}


def save(file: Path, found: Found) -> None:
    file.write_text(json.dumps(found, indent=1) + "\n")


def table(task: str, rows: Found) -> str:
    """One task in Markdown."""
    target = written(task, TARGETS[task])
    heads = ["codec", "score", "bytes a step", "of float32", f"steps to {target}"]
    links = [link for link in LINKS if any(link in row for row in rows.values())]
    heads += [f"seconds, {LINKS[link]}" for link in links]
    base = rows["none"]["bytes"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for way in [way for way in WAYS if way in rows]:
        row = rows[way]
        cells = [PEERS.get(way, f"`{way}`"), written(task, row["score"]), f"{row['bytes']:,.0f}"]
        cells += [f"{row['bytes'] / base:.3f}", str(row["step"] or "never")]
        cells += [f"{row[link]:.1f}" if row.get(link) else "" for link in links]
        lines.append("| " + " | ".join(cells) + " |")
    steps = rows["none"]["steps"]
    return f"**`{task}`**, {steps} steps:\n\n" + "\n".join(lines)


def written(task: str, score: float) -> str:
    return f"{score:.2f} bits" if task == "gpt-char" else f"{100 * score:.4g} %"


if __name__ == "__main__":
    main()
