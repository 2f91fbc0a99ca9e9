"""Every codec at its defaults on the lab's tasks: score, bytes, and time to a target on two links.

    .venv/bin/python benchmarks/codec_table.py codecs.json --scores      # over loopback: an hour
    .venv/bin/python benchmarks/codec_table.py codecs.json --times       # on shaped links: minutes
    .venv/bin/python benchmarks/codec_table.py codecs.json --page docs/codecs/index.md

A link changes no bit of a training, so each is run once, over loopback, and says how many steps
the target takes; a few steps on the link say how long a step is. GradiVeQ has steps of several
kinds, so it is trained up to the target on the link itself.

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
    "none", "lossless", "fp16", "bf16", "qsgd", "dqsg", "ndqsg", "eden", "global-qsgd", "gradiveq",
    "powersgd", "fft", "topk",
]  # fmt: skip
PHASED = ("gradiveq",)
WORKERS, TIMED_STEPS = 4, 24
MARKS = Marks("codec_table.py")

Found = dict[str, Any]
"""By task, then codec: `score`, `bytes` of a step, `step` that reached the target, `steps`, and
by link `seconds` to the target."""


def main() -> None:
    options = parse_arguments()
    found: Found = json.loads(options.file.read_text()) if options.file.exists() else {}
    for task in options.task:
        codecs = [codec for codec in CODECS if codec in options.codec]
        rows = found.setdefault(task, {})
        if options.scores:
            rows |= scores(task, codecs)
            save(options.file, found)
        for link in LINKS if options.times else ():
            for codec, seconds in times(task, link, {c: rows[c] for c in codecs}).items():
                rows[codec][link] = seconds
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
    add("-c", "--codec", action="append", choices=CODECS, help="repeatable (default: all)")
    options = parser.parse_args()
    options.task, options.codec = options.task or list(TARGETS), options.codec or CODECS
    return options


def scores(task: str, codecs: Sequence[str]) -> Found:
    """How good each codec becomes, what it sends, and when it reaches the target."""
    return {
        row["codec"]: {
            "score": row[SCORES[task]],
            "bytes": row["bytes_per_step"],
            "steps": row["steps"],
            "step": row["reached"] and row["reached"]["step"],
        }
        for row in train(task, codecs, "--eval-every", "10")
    }


def times(task: str, link: str, rows: Found) -> dict[str, float | None]:
    """Seconds to the target on a link, None if it is never reached."""
    arrived = [codec for codec, row in rows.items() if row["step"] is not None]
    even = [codec for codec in arrived if codec not in PHASED]
    found: dict[str, float | None] = dict.fromkeys(rows)
    if even:
        steps = "--steps", str(TIMED_STEPS), "--link", link
        for row in train(task, even, *steps):
            found[row["codec"]] = row["step_s"] * rows[row["codec"]]["step"]
    for codec in set(arrived) - set(even):
        (row,) = train(task, [codec], "--link", link)
        found[codec] = row["reached"]["seconds"]
    return found


def train(task: str, codecs: Sequence[str], *arguments: str) -> list[dict[str, Any]]:
    """The rows of one `gradwire train`; it shows its progress itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [sys.executable, "-m", "gradwire", "train", "-t", task, "-w", str(WORKERS)]
        command += ["--target", str(TARGETS[task]), "--json", str(file), *arguments]
        for codec in codecs:
            command += ["-c", codec]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def save(file: Path, found: Found) -> None:
    file.write_text(json.dumps(found, indent=1) + "\n")


def table(task: str, rows: Found) -> str:
    """One task in Markdown."""
    target = written(task, TARGETS[task])
    heads = ["codec", "score", "bytes a step", "of float32", f"steps to {target}"]
    heads += [f"seconds, {link}" for link in LINKS.values()]
    base = rows["none"]["bytes"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for codec in [codec for codec in CODECS if codec in rows]:
        row = rows[codec]
        cells = [f"`{codec}`", written(task, row["score"]), f"{row['bytes']:,.0f}"]
        cells += [f"{row['bytes'] / base:.3f}", str(row["step"] or "never")]
        cells += [f"{row[link]:.1f}" if row.get(link) else "" for link in LINKS]
        lines.append("| " + " | ".join(cells) + " |")
    steps = rows["none"]["steps"]
    return f"**`{task}`**, {steps} steps:\n\n" + "\n".join(lines)


def written(task: str, score: float) -> str:
    return f"{score:.2f} bits" if task == "gpt-char" else f"{100 * score:.4g} %"


if __name__ == "__main__":
    main()
