"""One worker of `plan_check.py`: a probe, then every variant. Started by it, not by hand."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist

import link_worker as worker
from gradwire.lab.probe.run import Subject, probe
from link_rate import reached_bps

FILE, CODECS, SECONDS = "GRADWIRE_PLAN_FILE", "GRADWIRE_PLAN_CODECS", "GRADWIRE_PLAN_SECONDS"


def main() -> None:
    options = worker.parse_arguments()
    threading.Thread(target=worker.end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{options.master}", rank=options.rank, world_size=options.world
    )
    worker.say(options, {"reached_bps": reached_bps(options.master)})
    subject = Subject(lambda: subject_of(options.model), options.model)
    specs = os.environ[CODECS].split()
    found = probe(subject, specs, float(os.environ[SECONDS]), lambda done, what: None)
    if options.rank == 0:
        Path(os.environ[FILE]).write_text(json.dumps([found.to_json()], indent=1))
    for variant in options.variant:
        worker.say(options, worker.measure(variant, options))
    dist.destroy_process_group()


def subject_of(name: str):
    model, inputs = worker.MODELS[name]()
    return model, lambda ddp: ddp(inputs).square().mean()


if __name__ == "__main__":
    main()
