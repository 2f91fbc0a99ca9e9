"""One exchange of a fragment, from the inner step where it begins to the one where it lands."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.algorithms.outer.fragments import Fragment
from gradwire.algorithms.outer.settings import OuterSettings


@dataclass(frozen=True, eq=False)
class Flight:
    """A fragment on its way.

    lands: the inner step after which the outer step is made, whether the mean came earlier or not.
    before: the weights of this worker when it began; None if it shall take the agreed ones.
    mean: a future of the mean outer gradient; of None if no worker has a part in it.
    """

    fragment: Fragment
    lands: int
    before: Tensor | None
    mean: Future[Tensor | None]

    def land(self, settings: OuterSettings) -> None:
        """Make the outer step, and move the model by it.

        What a worker has learned since the flight began it keeps: its weights move by the
        difference of the new agreed weights and those it had then. If there was nothing to learn,
        or if it had no part in the mean, it takes the agreed weights as they are.
        """
        fragment, mean = self.fragment, self.mean.wait()
        if mean is not None:
            fragment.outer_step(mean, settings.lr, settings.momentum)
        if self.before is None:
            fragment.put(fragment.weights)
        else:
            moved = torch.sub(fragment.weights, self.before)
            fragment.put(moved.add_(fragment.current()))


def landed(mean: Tensor | None) -> Future[Tensor | None]:
    """A future that is there already, of a flight that a checkpoint has kept."""
    done: Future[Tensor | None] = Future()
    done.set_result(mean)
    return done
