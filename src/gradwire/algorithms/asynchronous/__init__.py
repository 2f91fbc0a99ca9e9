"""Asynchronous QSGD: workers push gradients to a server and pull its weights, and nobody waits.

A worker that holds the weights of version v computes a gradient of them and sends it quantized.
When it arrives the server is at version t, and makes the step

    x_(t+1) = x_t - a_t s(d) Q(g(x_v)),    d = t - v, the delay, is at most T = `max_delay`      (1)

A gradient that is later than T does not count: the worker gets the new weights first. With f that
is L-smooth, unbiased gradients of variance sigma^2 and batch M, and a = O(sqrt(M / (K sigma^2))),
the mean squared gradient over K steps is

    1/K sum E |f'(x_t)|^2  <=  4 sqrt( (f(x_1) - f*) L sigma^2 / (M K) )                         (2)

as if there were no delays, once K is at least a multiple of T^2 (X. Lian, Y. Huang, Y. Li, J. Liu,
"Asynchronous Parallel Stochastic Gradient for Nonconvex Optimization", NeurIPS 2015,
arXiv:1506.08272, Theorem 1 and Corollary 2). An unbiased Q with E |Q(g)|^2 <= (1 + w) |g|^2 only
adds to the variance of gradients, sigma^2 -> (1 + w) sigma^2 + w |f'|^2, so (2) holds with that:
the way in which QSGD (arXiv:1610.02132) carries over to asynchrony.

The way back is quantized too. The server knows what each worker holds, h, to the bit, and sends

    m = Q(x_t - h),    h <- h + c m,    c = <x_t - h, m> / |m|^2                                 (3)

so that what one message loses is part of the next. c is the factor that leaves least: the error
shrinks by 1 - 1 / (1 + w) or more with every message, also where w is above 1.

A gradient is computed at the weights that are sent, and applied d steps later, when momentum b has
carried the model on. With momentum it is that way, and not the delay as such, that makes training
unstable. So what the server sends is a guess of where it will be,

    x_t + (b + b^2 + ... + b^d) (x_t - x_(t-1))                                                  (4)

which is what momentum alone will do (`lookahead`; I. Hakimi et al., "Taming Momentum in a
Distributed Asynchronous Environment", arXiv:1907.11612, has it for SGD).

    paper     here
    T         `max_delay`
    s(d)      `damping`
    K, M      versions; examples of a worker's batch

Differences from the paper: momentum, or any optimizer, may make the step (1). How it went, and
why the default is what it is: docs/algorithms/asynchronous.md.
"""

from gradwire.algorithms.asynchronous.pace import per_push as per_push
from gradwire.algorithms.asynchronous.server import AsyncServer as AsyncServer
from gradwire.algorithms.asynchronous.worker import AsyncWorker as AsyncWorker

__all__ = ["AsyncServer", "AsyncWorker", "per_push"]
