"""What a backend has to offer: the signature and the meaning of every kernel.

One file an operation. Each backend implements it in its file of the same name.
"""

from __future__ import annotations

from typing import Protocol

from gradwire.kernels.protocol.dithered import Dithered
from gradwire.kernels.protocol.elias import Elias
from gradwire.kernels.protocol.entropy import Entropy
from gradwire.kernels.protocol.exponential import Exponential
from gradwire.kernels.protocol.fields import Fields
from gradwire.kernels.protocol.floats import Floats
from gradwire.kernels.protocol.huffman import Huffman
from gradwire.kernels.protocol.levels import Levels
from gradwire.kernels.protocol.lossless import Lossless
from gradwire.kernels.protocol.low_rank import LowRank
from gradwire.kernels.protocol.nested import Nested
from gradwire.kernels.protocol.philox import Philox
from gradwire.kernels.protocol.quantize import Quantize
from gradwire.kernels.protocol.rotated import Rotated
from gradwire.kernels.protocol.scales import Scales
from gradwire.kernels.protocol.sparse import Sparse
from gradwire.kernels.protocol.spectra import Spectra
from gradwire.kernels.protocol.subspace import Subspace
from gradwire.kernels.protocol.sums import Sums
from gradwire.kernels.protocol.topk import TopK
from gradwire.kernels.protocol.turned import Turned


class Kernels(
    Philox, Scales, Quantize, Dithered, Nested, Exponential, Fields, Sums, Floats, Elias, Huffman,
    Entropy, Sparse, Spectra, TopK, Levels, Subspace, LowRank, Rotated, Turned, Lossless, Protocol,
):  # fmt: skip
    """Every kernel; a backend is a module with these functions.

    Kernels write to memory that the caller gives them. Vectors have one dimension and are
    contiguous; codes and bitmaps are uint8.
    """
