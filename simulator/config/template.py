"""The commented scenario that `servetwin init` writes: every key, its default, what it means."""

from __future__ import annotations

import yaml
from pydantic import BaseModel

from simulator.config.scenario import Scenario

_HEAD = """\
# A servetwin scenario. Every key is shown with its default; delete what you do not change.
# Run it: servetwin run THIS_FILE
"""


def commented_yaml(name: str) -> str:
    """Return a scenario file of this name, with a comment at every key that has something to explain."""
    scenario = Scenario(name=name)
    lines = [_HEAD + "schema: 1"]
    for key in Scenario.model_fields:
        value = getattr(scenario, key)
        if isinstance(value, BaseModel):
            lines.append(f"{key}:")
            lines += [f"  {_line(value, each)}" for each in type(value).model_fields]
        elif key != "schema_":
            lines.append(_line(scenario, key))
    return "\n".join(lines) + "\n"


def _line(section: BaseModel, key: str) -> str:
    value = section.model_dump()[key]
    text = f"{key}: {yaml.safe_dump([value], default_flow_style=True, width=10**6).strip()[1:-1]}"
    about = type(section).model_fields[key].description
    return f"{text:<44} # {about}" if about else text
