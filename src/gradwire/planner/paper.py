"""The performance model of the Global-QSGD paper (Xin et al. 2023, section 3), beside ours.

    T = 2 log(n) alpha + 2 log(n) S / beta + log(n) S / gamma

for a tree among n workers: alpha is the latency, S the bytes, beta the network's bytes a second,
gamma those a second that a worker adds. A codec of ratio rho makes S to S / rho and gamma to
gamma / omega; encoding is free. Nothing overlaps, so compute comes on top.

A tree sends 2 log2(n) S where a ring sends 2 (n - 1) / n S: among many workers it flatters every
codec, and where codecs or cores are the bottleneck it does not see it.
"""

from __future__ import annotations

from math import log2

from gradwire.planner.predict import Setting, bytes_of
from gradwire.planner.work import PLAIN, Work, raw

GAMMA = 1.5e9
"""Bytes of float32 a second that a core adds, if nothing was measured."""


def step_s(setting: Setting, work: Work, gamma: float = GAMMA, omega: float = 1.0) -> float:
    """What the paper would say of a step."""
    net, n = setting.network, setting.network.workers
    levels = log2(n)
    plain = bytes_of(setting, raw(PLAIN, n))
    ratio = plain / bytes_of(setting, work)
    nbytes = 4 * setting.model.params / ratio
    latency = net.share_s
    tree = 2 * levels * latency + 2 * levels * nbytes / net.rate + levels * nbytes * omega / gamma
    return setting.model.compute_s + tree
