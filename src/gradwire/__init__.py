"""gradwire: fewer, honest bits on the wire for data-parallel PyTorch."""

from gradwire.codec import Codec, Key, SummableCodec
from gradwire.codecs import parse
from gradwire.codecs.cast import Cast, Identity
from gradwire.codecs.drop import drop_with_rate
from gradwire.codecs.fft import FFTSparse
from gradwire.codecs.qsgd import QSGD
from gradwire.collectives import simulate
from gradwire.ddp import Handle, Stats, attach
from gradwire.functional import all_reduce
from gradwire.wire import WireError, decode, encode

__version__ = "0.1.0"

__all__ = [
    "QSGD",
    "Cast",
    "Codec",
    "FFTSparse",
    "Handle",
    "Identity",
    "Key",
    "Stats",
    "SummableCodec",
    "WireError",
    "all_reduce",
    "attach",
    "decode",
    "drop_with_rate",
    "encode",
    "parse",
    "simulate",
]
