"""A slider over the rates tested, for notebooks: a plotly FigureWidget and the numbers at the chosen rate."""

from __future__ import annotations

from typing import Any

from simulator.errors import ConfigError
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.plots import attainment_and_goodput
from simulator.experiments.capacity.words import rate_cells
from simulator.experiments.figure_style import TROUBLE
from simulator.experiments.report_page import table_html

CHOSEN = "chosen"


def capacity_widget(found: Found) -> Any:
    """Return an ipywidgets box; ConfigError says what to install where that is not possible."""
    try:
        import anywidget  # noqa: F401  # plotly's FigureWidget needs it
        import ipywidgets
        from plotly.graph_objects import FigureWidget
    except ImportError as error:
        raise ConfigError(
            f"widget: needs {error.name}; pip install 'servetwin[notebooks]', or use plot()"
        ) from None
    fig = FigureWidget(attainment_and_goodput(found))
    rates = sorted({rate for each in found.answers.values() for rate in each.tested})
    line = {"color": TROUBLE, "width": 2}
    for col in (1, 2):
        fig.add_vline(x=rates[0], line=line, name=CHOSEN, row=1, col=col)
    first = found.answers[found.winner or found.baseline]
    slider = ipywidgets.SelectionSlider(
        options=[(f"{rate:.4g}", rate) for rate in rates],
        value=first.rate or rates[0],
        description=first.loads.unit,
    )
    table = ipywidgets.HTML()

    def show(change: Any) -> None:
        with fig.batch_update():
            for shape in fig.layout.shapes:
                if shape.name == CHOSEN:
                    shape.x0 = shape.x1 = slider.value
        table.value = numbers_html(found, slider.value)

    slider.observe(show, names="value")
    show(None)
    return ipywidgets.VBox([slider, fig, table])


def numbers_html(found: Found, rate: float) -> str:
    """Return what each candidate gave at a rate, those that were tested there."""
    titles: list[str] = []
    rows = []
    for name, answer in found.answers.items():
        titles, cells = rate_cells(answer)
        rows += [[name, *row] for row, point in zip(cells, answer.points, strict=True) if point.rate == rate]
    return table_html(["candidate", *titles], rows)
