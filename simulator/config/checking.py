"""Checks on nested settings: dotted keys, one-line messages, near names."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError

from simulator.errors import ConfigError, suggest

Root = TypeVar("Root", bound=BaseModel)

_SHOULD = re.compile(r"^(Input|String|List) should ")  # how pydantic's messages begin


def validate(root: type[Root], data: Mapping[str, Any], place: str) -> Root:
    """Check nested dicts against a model; ConfigError names `place`, the key and the rule."""
    try:
        return root.model_validate(plain(data, place))
    except ValidationError as error:
        raise ConfigError(f"{place}: {_explain(root, error)}") from None


def change_keys(root: type[BaseModel], data: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of nested dicts with dotted keys replaced; ConfigError for a key that no scenario has."""
    data = copy.deepcopy(data)
    for key, value in changes.items():
        *sections, last = key.split(".")
        here, model = data, cast("type[BaseModel] | None", root)
        for part in [*sections, last]:
            known = _fields(model)
            if known and part not in known:
                raise ConfigError(f"{key}: unknown key {part!r}{suggest(part, known)}")
            model = known.get(part)
        for part in sections:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[last] = value
    return data


def _fields(model: type[BaseModel] | None) -> dict[str, type[BaseModel] | None]:
    """Map the keys of a section to the sections below them."""
    if model is None:
        return {}
    fields: dict[str, type[BaseModel] | None] = {}
    for name, field in model.model_fields.items():
        fields[field.alias or name] = _section(field.annotation)
    return fields


def _section(kind: object) -> type[BaseModel] | None:
    """Return the section that an annotation names, also within `| None` and lists."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for each in get_args(kind) if (found := _section(each))), None)


def plain(value: object, place: str) -> object:
    """Return the same data as dicts with text keys, lists, texts and Python's own numbers.

    Numbers of numpy are taken; ConfigError names the place of anything else.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each, f"{place}.{key}") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, place) for each in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ConfigError(f"{place}: must be text, a number, a list or a mapping, got {value!r:.80}")


def _explain(root: type[BaseModel], error: ValidationError) -> str:
    """Say what is wrong with the first bad key, in one line."""
    errors = error.errors(include_url=False)
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    key = ".".join(place) or "scenario"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] | None = root
        for part in (part for part in place[:-1] if not part.isdigit()):
            model = _fields(model).get(part)
        return f"{key}: unknown key{suggest(place[-1], _fields(model))}{more}"
    if first["type"] == "value_error":
        return f"{key}: {first['msg'].removeprefix('Value error, ')}{more}"
    if first["type"] in ("model_type", "dict_type"):
        rule = "must be a mapping of keys to values"
    else:
        rule = _SHOULD.sub("must ", first["msg"])
    return f"{key}: {rule}, got {first['input']!r:.80}{more}"
