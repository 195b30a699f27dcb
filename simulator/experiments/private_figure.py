"""A figure for notebooks that offers no upload: plotly 7 shows a button for it unless told otherwise."""

from __future__ import annotations

from typing import Any

import plotly.io
from plotly.graph_objects import Figure

CONFIG = {"showSendToCloud": False, "plotlyServerURL": "", "displaylogo": False}


class PrivateFigure(Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure that is shown with `CONFIG`, whichever way it is shown."""

    def show(self, *args: Any, **kwargs: Any) -> Any:
        config = CONFIG | (kwargs.pop("config", None) or {})
        return super().show(*args, config=config, **kwargs)

    def _ipython_display_(self) -> None:
        if plotly.io.renderers.render_on_display and plotly.io.renderers.default:
            self.show()
        else:
            print(repr(self))

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return super()._repr_mimebundle_(*args, config=CONFIG, **kwargs)

    def to_html(self, *args: Any, **kwargs: Any) -> Any:
        config = CONFIG | (kwargs.pop("config", None) or {})
        return super().to_html(*args, config=config, **kwargs)

    def write_html(self, *args: Any, **kwargs: Any) -> None:
        config = CONFIG | (kwargs.pop("config", None) or {})
        super().write_html(*args, config=config, **kwargs)
