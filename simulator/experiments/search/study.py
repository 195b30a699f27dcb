"""Optuna by ask and tell: what to try next, given what was found.

TPE models where good points lie (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS
2011; Watanabe, arXiv:2304.11127), NSGA-II breeds the least dominated (Deb et al., IEEE Transactions on
Evolutionary Computation 6(2), 2002). Points are asked for in batches of a fixed size and told in the order
of their numbers, so what comes next depends neither on how many run at once nor on which ends first.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError
from simulator.experiments.search.goals import Constraint, Objective
from simulator.experiments.search.space import Space, distribution, value

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "nsga2")
BATCH = 8
"""Points between two looks at what came out; more would keep more cores busy and learn more slowly."""
POPULATION = 24
"""NSGA-II's generation, three batches; Optuna's 50 leaves too few generations to a few hundred trials."""

Point = dict[str, Any]
"""A value by scenario key."""


def need_optuna() -> None:
    """ConfigError if Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("search: needs Optuna; pip install 'servetwin[sweep]'") from None
    if not hasattr(optuna.Trial, "set_constraint"):
        raise ConfigError(
            f"search: needs Optuna 5, found {optuna.__version__}; pip install 'servetwin[sweep]'"
        )


class Study:
    """A search's memory. Same seed, same answers told: same points asked."""

    def __init__(self, space: Space, objectives: Sequence[Objective], sampler: str, seed: int) -> None:
        import optuna

        self._space = space
        self._distributions = {key: distribution(each) for key, each in space.items()}
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # or it reports that it exists
        try:
            self._study = optuna.create_study(
                sampler=_sampler(sampler, seed),
                directions=["maximize" if each.maximize else "minimize" for each in objectives],
            )
        finally:
            optuna.logging.set_verbosity(before)

    def ask(self, count: int) -> list[tuple[Trial, Point]]:
        """Return so many further trials and their points."""
        asked = []
        for _ in range(count):
            trial = self._study.ask(self._distributions)
            asked.append(
                (trial, {key: value(key, each, trial.params[key]) for key, each in self._space.items()})
            )
        return asked

    def tell(
        self, trial: Trial, values: Sequence[float] | None, violations: Sequence[tuple[Constraint, float]]
    ) -> None:
        """Tell what a trial gave, None of one that failed; a violation above 0 is a missed constraint."""
        from optuna.trial import TrialState

        if values is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for constraint, violation in violations:
            trial.set_constraint(str(constraint), violation)
        self._study.tell(trial, list(values))


def _sampler(name: str, seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler, TPESampler

    state = seed % 2**32  # what numpy's old generator, in Optuna, takes
    if name == "nsga2":
        return NSGAIISampler(population_size=POPULATION, seed=state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that multivariate sampling is experimental in some versions
        return TPESampler(seed=state, multivariate=True, constant_liar=True)
