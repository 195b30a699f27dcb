"""What the rates tested say about one candidate: its capacity, how sure, the knee, the price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simulator.config.cost import cost_per_million, price_per_hour
from simulator.config.scenario import Scenario
from simulator.experiments.capacity.crossing import crossing_of, mean_of, pseudo_values
from simulator.experiments.capacity.knee import knee
from simulator.experiments.capacity.loads import Loads
from simulator.experiments.capacity.point import Estimate, Point
from simulator.experiments.capacity.search import Edge, first_edge
from simulator.experiments.intervals import Interval, interval_of
from simulator.experiments.jobs import Values

FOUND, NONE, ALL = "found", "no rate meets", "every rate meets"


@dataclass
class Answer:
    """One candidate's rates. `binding` says what would help most at `pushed`, a rate beyond the capacity."""

    name: str
    loads: Loads
    target: float
    tolerance: float
    tested: dict[float, Point] = field(default_factory=dict)
    met: dict[float, bool] = field(default_factory=dict)
    drawn: list[float] = field(default_factory=list)  # capacities under draws of the model's error
    binding: Mapping[str, object] | None = None
    pushed: float | None = None

    def add(self, rate: float, values: tuple[Values, ...]) -> None:
        """Take in what was found at a rate, a replication each."""
        self.tested[rate] = Point(rate, values)
        self.met[rate] = self.tested[rate].margin(self.target, self.tolerance) >= 0

    @cached_property
    def points(self) -> list[Point]:
        """The rates tested, rising. Ask when the search is over."""
        return [self.tested[rate] for rate in sorted(self.tested)]

    @property
    def edge(self) -> Edge | None:
        return first_edge(self.met)

    @property
    def outcome(self) -> str:
        """Whether the capacity was found, or lies below or above all rates tested."""
        if self.edge is not None:
            return FOUND
        return ALL if any(self.met.values()) else NONE

    @property
    def rate(self) -> float | None:
        """The capacity: of the rates tested, the last that meets before the first that misses.

        None if none meets; the highest tested if all do, and the true one is then at least that.
        """
        edge = self.edge
        if edge is not None:
            return edge.met
        return None if self.outcome == NONE else max(self.met)

    @property
    def at(self) -> Point | None:
        """What was found at the capacity."""
        return None if self.rate is None else self.tested[self.rate]

    @cached_property
    def pseudo(self) -> list[float]:
        """The jackknife's values, one a replication; none where no edge was found."""
        return pseudo_values(self.points, self.target, self.tolerance) if self.outcome == FOUND else []

    @cached_property
    def crossing(self) -> float:
        """Where the target is crossed along the line between the two rates next to the capacity."""
        return crossing_of(self.points, self.target, self.tolerance)

    @cached_property
    def interval(self) -> Estimate | None:
        """The capacity with its interval over replications, within the rates between which it was found."""
        edge = self.edge
        if edge is None:
            return None
        found = mean_of(self.pseudo, self.crossing)
        if found.low is None or found.high is None:
            return Estimate(edge.met, None, None)
        return Estimate(edge.met, max(0.0, min(found.low, edge.met)), max(found.high, edge.met))

    @property
    def model_interval(self) -> Interval | None:
        """The capacity under the latency model's own error, None if that was not drawn."""
        return interval_of(self.drawn)

    @property
    def missed_below(self) -> list[float]:
        """Rates below the capacity that miss."""
        return [rate for rate in sorted(self.met) if not self.met[rate] and rate < (self.rate or 0.0)]

    @property
    def met_above(self) -> list[float]:
        """Rates above the first miss that meet again."""
        edge = self.edge
        return [] if edge is None else [r for r in sorted(self.met) if self.met[r] and r > edge.missed]

    @property
    def knee(self) -> float | None:
        """The rate beyond which goodput hardly rises."""
        goods = [point.goodput for point in self.points]
        return knee([p.rate for p in self.points], [0.0 if g is None else g.value for g in goods])

    def cost(self, point: Point) -> Estimate | None:
        """Return the price of a million output tokens at a rate; None without a price."""
        return cost_of(point, self.loads.base)

    @property
    def scenario(self) -> Scenario | None:
        """The scenario at its capacity."""
        return None if self.rate is None else self.loads.scenario(self.rate)

    def why(self, point: Point) -> str:
        """Say which limits are missed most at a rate, or that the queue grows."""
        return point.why(self.target, self.tolerance)


def cost_of(point: Point, scenario: Scenario) -> Estimate | None:
    """Return what a million output tokens cost on the scenario's GPUs; None without a price or tokens."""
    each = point.of("duration", "output_tokens")
    if each is None or price_per_hour(scenario) is None:
        return None
    value, low, high = (None if seconds is None else _price(scenario, seconds) for seconds in each)
    return None if value is None else Estimate(value, low, high)


def _price(scenario: Scenario, seconds_per_token: float) -> float | None:
    speed = 1.0 / max(seconds_per_token, 1e-12)  # an interval may reach below 0
    return cost_per_million(scenario, {"output_throughput": speed})
