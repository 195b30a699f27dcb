"""Where more load stops bringing more goodput.

Kneedle (Satopaa, Albrecht, Irwin and Raghavan, "Finding a 'Kneedle' in a haystack", ICDCSW 2011, section
III), on goodput over rate from the origin to the highest goodput: both axes are normalised to 0..1, and the
knee is the rate at which the curve is furthest above the diagonal. A curve that rises straight to its peak
has its knee there. Left out: the paper's smoothing and its threshold for a knee found online.
"""

from __future__ import annotations

from collections.abc import Sequence

METHOD = "Kneedle on goodput over rate, up to the highest goodput"
STRAIGHT = 0.005
"""Less above the diagonal, of 1, is no bend."""


def knee(rates: Sequence[float], goodput: Sequence[float]) -> float | None:
    """Return the knee's rate, one of `rates` (rising); None if no request was good.

    >>> knee([1.0, 2.0, 3.0, 4.0], [1.0, 1.9, 2.0, 0.5])
    2.0
    """
    if not goodput or max(goodput) <= 0:
        return None
    peak = max(range(len(goodput)), key=lambda i: goodput[i])
    above = [goodput[i] / goodput[peak] - rates[i] / rates[peak] for i in range(peak + 1)]
    best = max(range(peak + 1), key=lambda i: above[i])
    return rates[best] if above[best] > STRAIGHT else rates[peak]
