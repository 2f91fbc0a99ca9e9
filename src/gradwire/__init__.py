"""gradwire: fewer, honest bits on the wire for data-parallel PyTorch.

The public names are listed here and imported when they are first used: torch takes seconds, for
which `gradwire --version` need not wait.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gradwire.adapters.attach import attach as attach
    from gradwire.adapters.functional import all_reduce as all_reduce
    from gradwire.adapters.handle import Handle as Handle
    from gradwire.codec import Codec as Codec
    from gradwire.codec import SummableCodec as SummableCodec
    from gradwire.codecs import parse as parse
    from gradwire.codecs.cast import Cast as Cast
    from gradwire.codecs.cast import Identity as Identity
    from gradwire.codecs.dqsg import DQSG as DQSG
    from gradwire.codecs.eden import EDEN as EDEN
    from gradwire.codecs.fft import FFTSparse as FFTSparse
    from gradwire.codecs.fft.drop import drop_with_rate as drop_with_rate
    from gradwire.codecs.global_qsgd import GlobalQSGD as GlobalQSGD
    from gradwire.codecs.gradiveq import GradiVeQ as GradiVeQ
    from gradwire.codecs.lossless import Lossless as Lossless
    from gradwire.codecs.ndqsg import NDQSG as NDQSG
    from gradwire.codecs.powersgd import PowerSGD as PowerSGD
    from gradwire.codecs.qsgd import QSGD as QSGD
    from gradwire.codecs.thc import THC as THC
    from gradwire.codecs.topk import TopK as TopK
    from gradwire.collectives import simulate as simulate
    from gradwire.key import Key as Key
    from gradwire.lab.probe.script import probe as probe
    from gradwire.planner.auto.settings import Auto as Auto
    from gradwire.reduction.policy import Policy as Policy
    from gradwire.reduction.stats import Stats as Stats
    from gradwire.wire import WireError as WireError
    from gradwire.wire import decode as decode
    from gradwire.wire import encode as encode

_HOMES = {
    "attach": "adapters.attach",
    "all_reduce": "adapters.functional",
    "Handle": "adapters.handle",
    "Auto": "planner.auto.settings",
    "Codec": "codec",
    "SummableCodec": "codec",
    "parse": "codecs",
    "Cast": "codecs.cast",
    "Identity": "codecs.cast",
    "DQSG": "codecs.dqsg",
    "EDEN": "codecs.eden",
    "FFTSparse": "codecs.fft",
    "drop_with_rate": "codecs.fft.drop",
    "GlobalQSGD": "codecs.global_qsgd",
    "GradiVeQ": "codecs.gradiveq",
    "Lossless": "codecs.lossless",
    "NDQSG": "codecs.ndqsg",
    "PowerSGD": "codecs.powersgd",
    "QSGD": "codecs.qsgd",
    "THC": "codecs.thc",
    "TopK": "codecs.topk",
    "simulate": "collectives",
    "Key": "key",
    "probe": "lab.probe.script",
    "Policy": "reduction.policy",
    "Stats": "reduction.stats",
    "WireError": "wire",
    "decode": "wire",
    "encode": "wire",
}

__all__ = list(_HOMES)

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name, or a submodule, and keep it for the next time."""
        from importlib import import_module, util

        if name in _HOMES:
            globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
            return globals()[name]
        if not name.startswith("_") and util.find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
