"""The transforms of docs/wire.md, for the independent decoder; nothing here is of gradwire."""

import math

import numpy as np

F32 = np.float32


def inverse(domain, coefficients, block):
    """The values of all whole blocks, and of what is left in falling powers of two."""
    values, start = coefficients.copy(), 0
    while domain and start < len(values):
        left = len(values) - start
        size = min(block, 1 << left.bit_length() - 1)
        stop = start + left // size * size
        if size > 1:
            blocks = values[start:stop].reshape(-1, size).T
            values[start:stop] = turn_back(blocks, domain == 2).T.reshape(-1)
        start = stop
    return values


def circle(k, count, scale=1.0):
    """cos and sin of k / count of a turn, in a column; of a quarter, the cosine is 0."""
    cos = np.where(4 * k == count, 0.0, np.cos(2 * math.pi * k / count))
    return [(part * scale).astype(F32)[:, None] for part in (cos, np.sin(2 * math.pi * k / count))]


def turn_back(c, dct):
    """The values of the coefficients in each column."""
    size, half = len(c), len(c) // 2
    k, scale = np.arange(1, half), 1 / math.sqrt(2 * size)
    a, b = np.zeros((2, *c[:half].shape), F32)
    if dct:
        last, (cos, sin) = c[half], circle(k, 4 * size, scale)
        a[1:], b[1:] = c[k] * cos + c[size - k] * sin, c[k] * sin - c[size - k] * cos
    else:
        last, a[1:], b[1:] = c[-1], c[2 * k - 1] * F32(scale), c[2 * k] * F32(scale)
    k = np.arange(1, half // 2 + 1)
    j = half - k
    cos, sin = circle(k, size)
    e, f, g, h = a[k] + a[j], b[k] - b[j], a[k] - a[j], b[k] + b[j]
    t, u = cos * h + sin * g, cos * g - sin * h
    a[k], b[k] = e - t, f + u
    a[j], b[j] = e + t, u - f
    ends = F32(1 / math.sqrt(size))
    a[0], b[0] = (c[0] + last) * ends, (c[0] - last) * ends
    z = fourier(pairs(b, a))
    x = np.stack((z.imag, z.real), 1).reshape(c.shape)
    return np.stack((x[:half], x[half:][::-1]), 1).reshape(c.shape) if dct else x


def fourier(z):
    """The complex transform of each column."""
    half, columns = z.shape
    digits = half.bit_length() - 1
    order = [int(f"{j:0{digits}b}"[::-1], 2) if digits else 0 for j in range(half)]
    z, width = z[order], 1
    if digits % 2:
        p, q = z[0::2], z[1::2]
        z, width = np.stack((p + q, p - q), 1).reshape(z.shape), 2
    while width < half:
        p, q, r, s = z.reshape(-1, 4, width, columns).transpose(1, 0, 2, 3)
        for part, times in ((q, 2), (r, 1), (s, 3)):
            turn(part[:, 1:], times * np.arange(1, width), 4 * width)
        e, f, g, d = p + q, r + s, p - q, r - s
        d = pairs(-d.imag, d.real)
        z = np.stack((e + f, g - d, e - f, g + d), 1).reshape(z.shape)
        width *= 4
    return z


def turn(z, m, n):
    """Turn each row of `z` by its `m` parts in `n`, in place."""
    cos, sin = circle(m, n)
    z[...] = pairs(z.real * cos + z.imag * sin, z.imag * cos - z.real * sin)


def pairs(re, im):
    """Complex numbers of these parts; no product by i, which would make NaN of inf."""
    z = np.empty(re.shape, np.complex64)
    z.real, z.imag = re, im
    return z
