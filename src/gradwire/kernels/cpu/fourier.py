"""The steps of Fourier transforms on eight blocks at once, in the terms of `lanes.py`."""

from __future__ import annotations

from gradwire.kernels.cpu.lanes import LANES, Complex, Memory, one_nan, step, transposed


@step(2)
def plain_two(a: Memory, b: Memory) -> None:
    """(a + b, a - b)."""
    (ar, ai), (br, bi) = a.complex(), b.complex()
    a.put_complex((ar + br, ai + bi))
    b.put_complex((ar - br, ai - bi))


@step(4)
def plain_four(a: Memory, b: Memory, c: Memory, d: Memory) -> None:
    """A butterfly of four."""
    _put_four([a, b, c, d], [place.complex() for place in (a, b, c, d)])


@step(5)
def four(a: Memory, b: Memory, c: Memory, d: Memory, angles: Memory) -> None:
    """The same, after b, c and d are turned by two, one and three angles."""
    turned = [a.complex()]
    for place, times in ((b, 2), (c, 1), (d, 3)):
        cos, sin = angles.scalar(2 * times - 2), angles.scalar(2 * times - 1)
        re, im = place.complex()
        turned.append((re * cos + im * sin, im * cos - re * sin))
    _put_four([a, b, c, d], turned)


def _put_four(places: list[Memory], numbers: list[Complex]) -> None:
    (ar, ai), (br, bi), (cr, ci), (dr, di) = numbers
    sr, si, tr, ti = ar + br, ai + bi, cr + dr, ci + di
    pr, pi, qr, qi = ar - br, ai - bi, cr - dr, ci - di
    results = [(sr + tr, si + ti), (pr + qi, pi - qr), (sr - tr, si - ti), (pr - qi, pi + qr)]
    for place, result in zip(places, results, strict=True):
        place.put_complex(result)


def _split(a: Complex, b: Complex, angle: Memory) -> tuple[Complex, Complex]:
    (ar, ai), (br, bi) = a, b
    cos, sin = angle.scalar(0), angle.scalar(1)
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di - sin * dr, cos * dr + sin * di
    return (er + tr, ei - ti), (er - tr, -ei - ti)


def _join(a: Complex, b: Complex, angle: Memory) -> tuple[Complex, Complex]:
    """Real and imaginary parts come out exchanged: the transform that follows is then back."""
    (ar, ai), (br, bi) = a, b
    cos, sin = angle.scalar(0), angle.scalar(1)
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di + sin * dr, cos * dr - sin * di
    return (ei + ti, er - tr), (ti - ei, er + tr)


def _turned(number: Complex, turn: Memory) -> Complex:
    (re, im), cos, sin = number, turn.scalar(0), turn.scalar(1)
    return re * cos + im * sin, re * sin - im * cos


def _scaled(number: Complex, scale: Memory) -> Complex:
    return number[0] * scale.scalar(), number[1] * scale.scalar()


@step(4)
def ends(both: Memory, total: Memory, difference: Memory, scale: Memory) -> None:
    """The sum and the difference of two rows, which are the first and the last bin."""
    one, two = both.complex()
    total.put((one + two) * scale.scalar())
    difference.put((one - two) * scale.scalar())


@step(4)
def split_fft(a: Memory, b: Memory, angle: Memory, scale: Memory) -> None:
    """Bins k and B/2 - k of the real transform from those of the complex one."""
    one, two = _split(a.complex(), b.complex(), angle)
    a.put_complex(_scaled(one, scale))
    b.put_complex(_scaled(two, scale))


@step(4)
def join_fft(a: Memory, b: Memory, angle: Memory, scale: Memory) -> None:
    """And back."""
    one, two = _join(_scaled(a.complex(), scale), _scaled(b.complex(), scale), angle)
    a.put_complex(one)
    b.put_complex(two)


@step(5)
def split_dct(a: Memory, b: Memory, angle: Memory, turn: Memory, other: Memory) -> None:
    """As `split_fft`, and turned by a quarter sample."""
    one, two = _split(a.complex(), b.complex(), angle)
    a.put_complex(_turned(one, turn))
    b.put_complex(_turned(two, other))


@step(5)
def join_dct(a: Memory, b: Memory, angle: Memory, turn: Memory, other: Memory) -> None:
    """And back."""
    one, two = _join(_turned(a.complex(), turn), _turned(b.complex(), other), angle)
    a.put_complex(one)
    b.put_complex(two)


@step(4)
def load_rows(source: Memory, stride: Memory, rows: Memory, places: Memory) -> None:
    """Eight values of each of eight blocks, `stride` bytes apart, to the rows at these places."""
    columns = [source]
    for _ in range(LANES - 1):
        columns.append(columns[-1].further(stride.address))
    for at, row in enumerate(transposed([column.row() for column in columns])):
        rows.further(places.index(at)).put(row)


@step(5)
def store_rows(
    rows: Memory, places: Memory, target: Memory, stride: Memory, weight: Memory
) -> None:
    """And back, times a weight; all NaN become one."""
    factor = weight.scalar()
    for row in transposed([rows.further(places.index(at)).row() for at in range(LANES)]):
        target.put(one_nan(row * factor))
        target = target.further(stride.address)


@step(5)
def add_rows(rows: Memory, places: Memory, target: Memory, stride: Memory, weight: Memory) -> None:
    """As `store_rows`, added to what is there."""
    factor = weight.scalar()
    for row in transposed([rows.further(places.index(at)).row() for at in range(LANES)]):
        target.put(one_nan(target.row() + row * factor))
        target = target.further(stride.address)
