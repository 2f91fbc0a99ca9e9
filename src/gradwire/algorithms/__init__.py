"""Ways to train that exchange something else than every step's gradients, or at other times."""

from gradwire.algorithms.asynchronous import AsyncServer as AsyncServer
from gradwire.algorithms.asynchronous import AsyncWorker as AsyncWorker
from gradwire.algorithms.asynchronous import per_push as per_push
from gradwire.algorithms.outer.steps import OuterSteps as OuterSteps
from gradwire.algorithms.qsvrg import QSVRG as QSVRG

__all__ = ["QSVRG", "AsyncServer", "AsyncWorker", "OuterSteps", "per_push"]
