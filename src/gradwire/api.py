"""What `import gradwire` offers, and where it comes from."""

from gradwire.adapters.attach import attach
from gradwire.adapters.functional import all_reduce
from gradwire.adapters.handle import Handle
from gradwire.codec import Codec, ReducibleCodec, SummableCodec
from gradwire.codecs import parse
from gradwire.codecs.cast import Cast, Identity
from gradwire.codecs.dqsg import DQSG
from gradwire.codecs.fft import FFTSparse
from gradwire.codecs.fft.drop import drop_with_rate
from gradwire.codecs.global_qsgd import GlobalQSGD
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.ndqsg import NDQSG
from gradwire.codecs.qsgd import QSGD
from gradwire.collectives import simulate
from gradwire.key import Key
from gradwire.reduction.policy import Policy
from gradwire.reduction.stats import Stats
from gradwire.wire import WireError, decode, encode

__all__ = [
    "DQSG",
    "NDQSG",
    "QSGD",
    "Cast",
    "Codec",
    "FFTSparse",
    "GlobalQSGD",
    "GradiVeQ",
    "Handle",
    "Identity",
    "Key",
    "Policy",
    "ReducibleCodec",
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
