"""The fewest GPUs for notebooks: the number, frames, figures."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_report import save_gpus, to_dict
from simulator.experiments.capacity.gpus_tables import candidate_cells, fleet_cells
from simulator.experiments.capacity.gpus_words import details, headline, text
from simulator.experiments.capacity.point import Estimate
from simulator.experiments.report_page import escape, table_html

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class FewestGpus:
    """The fewest GPUs within the SLO. `gpus`, `replicas` and `scenario` are the winner's."""

    def __init__(self, found: Fewest) -> None:
        self._found = found

    @property
    def winner(self) -> str | None:
        """The cheapest candidate if all have prices, else that of the fewest GPUs; None if none meets."""
        return self._found.winner

    @property
    def gpus(self) -> int | None:
        """The winner's GPUs."""
        return None if self.winner is None else self._found.answers[self.winner].gpus

    @property
    def replicas(self) -> int | None:
        """The winner's replicas."""
        return None if self.winner is None else self._found.answers[self.winner].replicas

    @property
    def scenario(self) -> Scenario | None:
        """The winner's scenario with its replicas."""
        return None if self.winner is None else self._found.answers[self.winner].scenario

    @cached_property
    def summary(self) -> dict[str, object]:
        """Everything in numbers and words, with the keys of capacity.json."""
        return to_dict(self._found)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per candidate: its GPUs, attainment with interval, that of one replica less, the price."""
        import pandas as pd

        rows = []
        for name, answer in self._found.answers.items():
            at, below, n = answer.at, answer.below, answer.replicas
            price = None if n is None else answer.cost(n)
            rows.append(
                {
                    "candidate": name,
                    "gpus": answer.gpus,
                    "replicas": n,
                    **_three("attainment", None if at is None else at.attainment),
                    "attainment_of_one_less": None if below is None else below.attainment.value,
                    "surely_replicas": answer.surely,
                    "enough_in": answer.enough,
                    "price_per_hour": answer.price,
                    "cost_per_million_output_tokens": None if price is None else price.value,
                }
            )
        return pd.DataFrame(rows).set_index("candidate")

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per candidate and number of replicas tested, percentiles in ms."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for name, answer in self._found.answers.items():
            for n, point in answer.points.items():
                row: dict[str, object] = {"candidate": name, "replicas": n, "gpus": n * answer.gpus_each}
                row |= {"meets": answer.met[n], **_three("attainment", point.attainment)}
                row |= _three("goodput", point.goodput)
                for key in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"):
                    row |= _three(key, point.mean(key))
                rows.append(row | _three("cost_per_million_output_tokens", answer.cost(n)))
        return pd.DataFrame(rows).set_index(["candidate", "replicas"])

    def plot(self, kind: str = "goodput") -> Figure:
        """Draw `goodput`, `latency`, `cost` or `model`."""
        from simulator.experiments.capacity.gpus_plots import GPUS_PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        if kind not in GPUS_PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, GPUS_PLOTS)}")
        return PrivateFigure(GPUS_PLOTS[kind](self._found))

    def save(self, folder: str | Path) -> Path:
        """Write capacity.json, report.html and winner/, which is a scenario."""
        save_gpus(self._found, Path(folder))
        return Path(folder)

    def __str__(self) -> str:
        return text(self._found)

    def _repr_html_(self) -> str:
        answers = list(self._found.answers.values())
        lines = [headline(self._found, each) for each in answers]
        lines += details(answers[0]) if len(answers) == 1 else []
        cells = fleet_cells(answers[0]) if len(answers) == 1 else candidate_cells(self._found)
        return "".join(f"<p>{escape(line)}</p>" for line in lines) + table_html(*cells)


def _three(name: str, estimate: Estimate | None) -> dict[str, object]:
    """Return a value and its bounds as three columns."""
    found = (None, None, None) if estimate is None else estimate
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
