"""QSVRG: variance-reduced steps whose directions travel quantized, for finite sums.

The mean f of m losses f_j is minimised in epochs. Each begins with a full gradient at y, and makes
T inner steps from x = y in which every one of K workers draws an example j and sends the direction

    u_i = Q(grad f_j(x) - grad f_j(y) + g),   g = grad f(y),   x <- x - eta * mean_i u_i         (1)

The next y is the mean of the T iterates. Directions vanish as x and y near the optimum, and the
error of Q is proportional to the norm of what it quantizes, so the noise vanishes too: for f that
is strongly convex (l) and f_j that are L-smooth, eta = O(1/L) and T = O(L/l) give

    E f(y_p) - f* <= 0.9^p (f(y_0) - f*)                                                         (2)

where plain QSGD with a constant step stops at the level of its noise. With Q as in the paper, QSGD
with s = sqrt(n) levels of the l2 norm of all n values, a worker writes in an epoch at most

    (F + 2.8 n) (T + 1) + F n  bits,   F = 32                                                    (3)

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via
Gradient Quantization and Encoding", NeurIPS 2017, arXiv:1610.02132: its section on QSVRG.

    paper   here
    m / K   `num_examples`, those of one worker
    T, eta  `inner_steps`, `lr`
    Q       `codec`
    h_i     the mean loss of this worker's examples, over K

Differences from the paper: a worker draws from its own examples, not from all. As all workers have
the same number, the mean of their directions is still unbiased, and it varies less. It may draw a
`batch` of them for each direction. Full gradients travel in float32, all else of the arithmetic
is in float64. Convergence and bytes, measured: docs/algorithms/qsvrg.md.
"""

from gradwire.algorithms.qsvrg.optimizer import QSVRG as QSVRG

__all__ = ["QSVRG"]
