"""How many replicas there should be: autoscalers, an example of a policy over a fleet."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import NamedTuple

from simulator.cluster.routers import ReplicaState


class Fleeting(NamedTuple):
    """What an autoscaler may read: replicas that serve, how many are starting, and the time (s)."""

    serving: Many[ReplicaState]
    num_starting: int
    now: float


Autoscaler = Callable[[Fleeting], int]
"""Returns how many replicas there should be, those that start included."""


def by_outstanding(target: float = 32.0, scale_down: float = 0.5) -> Autoscaler:
    """Keep about `target` requests under way a replica; give one up below `scale_down` times that.

    The proportional rule of Kubernetes' HorizontalPodAutoscaler, on requests instead of CPU.
    """

    def wanted(fleet: Fleeting) -> int:
        under_way = sum(replica.num_outstanding for replica in fleet.serving)
        now = len(fleet.serving) + fleet.num_starting
        needed = max(1, math.ceil(under_way / target))
        if needed >= now:
            return needed
        return now - 1 if under_way < scale_down * target * (now - 1) else now

    return wanted


AUTOSCALERS: dict[str, Callable[..., Autoscaler]] = {"outstanding": by_outstanding}


class Scaling(NamedTuple):
    """When an autoscaler is asked (every `interval` s) and what its word does. Seconds.

    A new replica serves `start_delay` after it was asked for, and costs from then on when it was asked for.
    """

    autoscaler: Autoscaler
    most: int
    least: int = 1
    interval: float = 10.0
    start_delay: float = 60.0
