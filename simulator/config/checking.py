"""Checks on nested settings: dotted keys, one-line messages, near names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from simulator.errors import ConfigError, suggest

Root = TypeVar("Root", bound=BaseModel)


def validate(root: type[Root], data: Mapping[str, Any], place: str) -> Root:
    """Check nested dicts against a model; ConfigError names `place`, the key and the rule."""
    try:
        return root.model_validate(data)
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
        kind = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        fields[field.alias or name] = cast("type[BaseModel]", kind) if is_section else None
    return fields


def numbers(value: Any) -> Any:
    """Turn what YAML 1.1 leaves as text but people mean as a number (1e6) into one."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return value


def _explain(root: type[BaseModel], error: ValidationError) -> str:
    """Say what is wrong with the first bad key, in one line."""
    errors = error.errors(include_url=False)
    first = errors[0]
    place = [str(part) for part in first["loc"] if part not in ("function-after", "dict[str,int]")]
    key = ".".join(place) or "scenario"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] | None = root
        for part in place[:-1]:
            model = _fields(model).get(part)
        return f"{key}: unknown key{suggest(place[-1], _fields(model))}{more}"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] == "value_error" else f", got {str(first['input'])[:80]!r}"
    return f"{key}: {message[:1].lower()}{message[1:]}{given}{more}"
