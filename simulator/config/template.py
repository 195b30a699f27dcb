"""The commented scenario that `servetwin init` writes: every key, its default, what it means."""

from __future__ import annotations

from pydantic import BaseModel

from simulator.config.checking import validate
from simulator.config.plain_yaml import dump_yaml
from simulator.config.scenario import Scenario

_HEAD = """\
# A servetwin scenario. Every key is shown with its default; delete what you do not change.
# Run it: servetwin run THIS_FILE
"""


def commented_yaml(name: str) -> str:
    """Return a scenario file of this name, with a comment at every key that has something to explain.

    ConfigError for a name that no scenario can have.
    """
    scenario = validate(Scenario, {"name": name}, "new scenario")
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
    text = f"{key}: {dump_yaml([value], flow=True).strip()[1:-1]}"
    about = type(section).model_fields[key].description
    return f"{text:<44} # {about}" if about else text
