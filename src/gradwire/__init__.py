"""gradwire: fewer, honest bits on the wire for data-parallel PyTorch."""

from gradwire.codec import Codec, Key, SummableCodec
from gradwire.codecs import parse
from gradwire.codecs.cast import Cast, Identity
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.qsgd import QSGD
from gradwire.collectives import simulate
from gradwire.ddp import Handle, Stats, attach
from gradwire.functional import all_reduce

__version__ = "0.1.0"

__all__ = [
    "QSGD",
    "Cast",
    "Codec",
    "GradiVeQ",
    "Handle",
    "Identity",
    "Key",
    "Stats",
    "SummableCodec",
    "all_reduce",
    "attach",
    "parse",
    "simulate",
]
