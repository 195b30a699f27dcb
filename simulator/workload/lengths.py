"""Length distributions: prompt and output tokens of each request, whole numbers >= 1.

Every kind but `table` draws prompt and output independently and takes one law for each:

    {kind: constant, prompt: 1000, output: 100}
    {kind: uniform, prompt: [500, 1500], output: [1, 200]}               both ends included
    {kind: exponential, prompt: 1000, output: 100}                       the mean, before rounding
    {kind: lognormal, prompt: {mean: 1000, sigma: 1}, output: {...}}     mean in tokens, sigma of the log
    {kind: quantiles, prompt: {0: 3, 50: 100, 100: 8000}, output: {...}} percent: tokens, linear in between
    {kind: table, name: azure-conv}                                      prompt and output together, by time

(`{kind: sessions, name: agentic}` draws whole sessions; see `sessions`.)

Draws are rounded to the nearest whole number, and to 1 from below. Left out: an upper limit (the model's
length refuses what exceeds it), and prefixes that requests share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.workload.tables import load_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Lengths = tuple[Ints, Ints]
Draw = Callable[..., Lengths]

HERE = "workload.lengths"
MAX_TOKENS = 10_000_000
"""More than any model's context: a longer prompt or output is taken for a mistake."""


def constant(rng: np.random.Generator, n: int, value: float, where: str) -> Floats:
    """Return `value` for every request."""
    return np.full(n, _tokens(value, where))


def uniform(rng: np.random.Generator, n: int, ends: Sequence[float], where: str) -> Floats:
    """Draw every whole number from ends[0] to ends[1] with equal chance."""
    if len(ends) != 2 or _tokens(ends[0], where) > _tokens(ends[1], where):
        raise ConfigError(f"{where}: must be [low, high] with low <= high, got {ends}")
    return rng.integers(int(ends[0]), int(ends[1]), n, endpoint=True).astype(np.float64)


def exponential(rng: np.random.Generator, n: int, mean: float, where: str) -> Floats:
    """Draw from the memoryless law."""
    return rng.exponential(_tokens(mean, where), n)


def lognormal(rng: np.random.Generator, n: int, law: Mapping[str, float], where: str) -> Floats:
    """Draw exp(normal) with this mean, in tokens; sigma is that of the logarithm."""
    if set(law) != {"mean", "sigma"} or not law["sigma"] >= 0:
        raise ConfigError(f"{where}: must be {{mean: tokens, sigma: >= 0}}, got {dict(law)}")
    mu = float(np.log(_tokens(law["mean"], where)) - law["sigma"] ** 2 / 2)
    return rng.lognormal(mu, law["sigma"], n)


def quantiles(rng: np.random.Generator, n: int, law: Mapping[float, float], where: str) -> Floats:
    """Draw from the law with these quantiles, given as percent: tokens; 0 and 100 must be there."""
    points = sorted((float(p), _tokens(x, where)) for p, x in law.items())
    p, x = np.array(points).reshape(-1, 2).T
    if len(p) < 2 or p[0] != 0 or p[-1] != 100 or (np.diff(x) < 0).any():
        raise ConfigError(f"{where}: must map percent 0 to 100 to tokens that do not fall, got {dict(law)}")
    tokens: Floats = np.interp(rng.random(n) * 100, p, x)
    return tokens


def table(rng: np.random.Generator, arrival: Floats, name: str) -> Lengths:
    """Draw prompt and output together from a bundled table, whose mix of classes follows the time of arrival.

    Draws are stratified: within each bin of time the requests take the classes in the table's proportions.
    """
    t = load_table(name, f"{HERE}.name", "lengths")["lengths"]
    shares = np.asarray(t["shares"], np.float64)
    shares[shares.sum(1) == 0] = shares.sum(0)  # an empty bin: nothing known but the whole
    cumulative = np.cumsum(shares, 1) / shares.sum(1, keepdims=True)
    bins = np.minimum(arrival % t["span_s"] // t["bin_s"], len(shares) - 1).astype(np.int64)
    ladder = (cumulative + np.arange(len(shares))[:, None]).ravel()  # bin b climbs from b to b + 1
    step = np.searchsorted(ladder, bins + _stratified(rng, bins), side="right")
    kind = np.minimum(step - bins * shares.shape[1], shares.shape[1] - 1)
    return (
        _whole(_quantile(t["prompt"], kind, t["p"], rng.random(len(bins)))),
        _whole(_quantile(t["output"], kind, t["p"], rng.random(len(bins)))),
    )


def _stratified(rng: np.random.Generator, groups: Ints) -> Floats:
    """Draw one number in [0, 1) per row such that each group of m rows has one in every 1/m."""
    order = np.lexsort((rng.random(len(groups)), groups))
    sizes = np.bincount(groups)
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return (rank + rng.random(len(groups))) / sizes[groups]


def _quantile(laws: list[list[int]], row: Ints, p: list[float], u: Floats) -> Floats:
    """Read quantile u of the law `laws[row]`, whose values stand at the probabilities p."""
    knots, at_p = np.asarray(laws, np.float64), np.asarray(p)
    i = np.clip(np.searchsorted(at_p, u, side="right") - 1, 0, len(p) - 2)
    weight = (u - at_p[i]) / (at_p[i + 1] - at_p[i])
    values: Floats = knots[row, i] * (1 - weight) + knots[row, i + 1] * weight
    return values


def _whole(x: Floats) -> Ints:
    return np.clip(np.rint(x), 1, MAX_TOKENS).astype(np.int64)


def _tokens(value: float, where: str) -> float:
    if not 1 <= value <= MAX_TOKENS:
        raise ConfigError(f"{where}: must be 1 to {MAX_TOKENS:,} tokens, got {value}")
    return float(value)


def _both(law: Callable[..., Floats]) -> Draw:
    """Apply a law to the prompt and, with a stream of its own, to the output."""

    def draw(rng: np.random.Generator, arrival: Floats, prompt: object, output: object) -> Lengths:
        streams, n = rng.spawn(2), len(arrival)
        return (
            _whole(law(streams[0], n, prompt, f"{HERE}.prompt")),
            _whole(law(streams[1], n, output, f"{HERE}.output")),
        )

    return draw


LENGTHS: dict[str, Draw] = {
    "constant": _both(constant),
    "uniform": _both(uniform),
    "exponential": _both(exponential),
    "lognormal": _both(lognormal),
    "quantiles": _both(quantiles),
    "table": table,
}
