"""What the numbers of replicas tested say about one candidate: the fewest GPUs, how sure, the price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simulator.config.cost import all_gpus, price_per_hour
from simulator.config.scenario import Scenario
from simulator.experiments.capacity.answer import cost_of
from simulator.experiments.capacity.gpus_load import FleetLoads
from simulator.experiments.capacity.gpus_search import Step, fewest, last_step
from simulator.experiments.capacity.point import TOLERANCE, Estimate, Point
from simulator.experiments.intervals import Interval, interval_of
from simulator.experiments.jobs import Values

FOUND, ONE, NONE = "found", "one replica is enough", "not within the GPUs"


@dataclass
class FleetAnswer:
    """One candidate's numbers of replicas, of `gpus_each` GPUs, at most `most` of them."""

    name: str
    loads: FleetLoads
    target: float
    most: int
    tested: dict[int, Point] = field(default_factory=dict)
    met: dict[int, bool] = field(default_factory=dict)
    drawn: list[int] = field(default_factory=list)
    """Fewest replicas under each draw of the model's error; `most` + 1 where so many are not enough."""

    def add(self, rate: float, values: tuple[Values, ...]) -> None:
        """Take in what was found with a number of replicas (what `rate` is here)."""
        n = int(rate)
        self.tested[n] = Point(rate, values)
        self.met[n] = self.tested[n].margin(self.target, TOLERANCE) >= 0

    @property
    def gpus_each(self) -> int:
        """GPUs of one replica."""
        return all_gpus(self.loads.scenario(1))

    @cached_property
    def points(self) -> dict[int, Point]:
        """What was found, by rising number of replicas. Ask when the search is over."""
        return {n: self.tested[n] for n in sorted(self.tested)}

    @property
    def step(self) -> Step | None:
        return last_step(self.met)

    @property
    def replicas(self) -> int | None:
        """The answer: the fewest replicas that meet, one less shown to miss; None if `most` are too few."""
        return fewest(self.met)

    @property
    def outcome(self) -> str:
        if self.replicas is None:
            return NONE
        return FOUND if self.step is not None else ONE

    @property
    def gpus(self) -> int | None:
        return None if self.replicas is None else self.replicas * self.gpus_each

    @property
    def at(self) -> Point | None:
        """What was found with the fewest replicas."""
        return None if self.replicas is None else self.tested[self.replicas]

    @property
    def below(self) -> Point | None:
        """What was found with one replica less, which misses."""
        return None if self.step is None else self.tested[self.step.missed]

    @property
    def surely(self) -> int | None:
        """The fewest replicas tested, from the answer on, with no part of the interval below the target.

        None if there are none, or no intervals.
        """
        lows = {n: each.attainment.low for n, each in self.points.items() if self.met[n]}
        enough = (n for n, low in lows.items() if low is not None and low >= self.target)
        return next((n for n in enough if n >= (self.replicas or 0)), None)

    @property
    def missed_by_chance(self) -> bool:
        """Whether with one replica less the attainment's interval reaches the target."""
        high = None if self.below is None else self.below.attainment.high
        return high is not None and high >= self.target and not self._grows_below

    @property
    def _grows_below(self) -> bool:
        return self.below is not None and self.below.grows and self.below.growth > TOLERANCE

    @property
    def model_interval(self) -> Interval | None:
        """The fewest replicas under the latency model's own error, None if that was not drawn."""
        return interval_of(self.drawn)

    @property
    def enough(self) -> float | None:
        """Share of the draws of the model's error in which the answer is enough."""
        if not self.drawn or self.replicas is None:
            return None
        return sum(n <= self.replicas for n in self.drawn) / len(self.drawn)

    @property
    def counts(self) -> Mapping[int, int]:
        """How many draws ask for how many replicas."""
        return {n: self.drawn.count(n) for n in sorted(set(self.drawn))}

    @property
    def met_below(self) -> list[int]:
        """Fewer replicas that meet although one number between them and the answer misses."""
        return [n for n in sorted(self.met) if self.met[n] and n < (self.replicas or 0)]

    @property
    def missed_above(self) -> list[int]:
        """More replicas that miss."""
        least = self.replicas
        return [] if least is None else [n for n in sorted(self.met) if not self.met[n] and n > least]

    @property
    def price(self) -> float | None:
        """Price of an hour of the fewest GPUs; None without a price."""
        return None if self.replicas is None else price_per_hour(self.loads.scenario(self.replicas))

    def cost(self, n: int) -> Estimate | None:
        """Return the price of a million output tokens with n replicas; None without a price."""
        return cost_of(self.tested[n], self.loads.scenario(n))

    @property
    def scenario(self) -> Scenario | None:
        """The scenario with the fewest replicas."""
        return None if self.replicas is None else self.loads.scenario(self.replicas)

    def why(self, point: Point) -> str:
        """Say which limits are missed most, or that the queue grows."""
        return point.why(self.target, TOLERANCE)
