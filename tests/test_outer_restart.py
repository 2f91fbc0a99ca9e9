"""torchrun restarts workers one of which was killed and lost its disk: it joins the others."""

from pathlib import Path

import pytest
import torch

from test_elastic import torchrun

SCRIPT = Path(__file__).with_name("outer_worker.py")


@pytest.mark.slow
def test_a_killed_worker_that_lost_its_state_joins_the_others(tmp_path):
    results = torchrun(tmp_path, SCRIPT)
    assert [result["knew"] for result in results] == [True, True, False]
    for result in results:
        assert result["start"] == 20
        assert torch.equal(result["weights"], results[0]["weights"])
        assert max(result["losses"]) < 0.2  # an untrained model has 0.35
