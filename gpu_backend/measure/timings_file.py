"""The file of timings: what `calibrate fit` reads, with the spread and the state of the device beside it.

`x.csv` holds the rows, `x.settings.json` how they were measured and every session that added some. Both are
replaced whole, so that a crash leaves the last state. Rows measured with other settings are never added.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from calibration.timings import COUNTS
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.measure.points import Point
from simulator.errors import InputError

COLUMNS = (
    *("op", *COUNTS, "latency", "unit", "p10", "p90", "samples", "fixed", "mode"),
    *("device", "source", "model", "sm_mhz", "power_w", "temperature_c", "throttle"),
)
"""Besides those of `calibration.timings`: percentiles of the samples, `fixed` (what the layers do not
explain, once a step), how it was timed, and the device's state right after. Times are in `unit`."""

UNIT = "us"
Row = dict[str, object]


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once; InputError if it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if beside.exists():
            beside.unlink()


def counts_of(point: Point, config: DecoderConfig, block_bytes: int) -> dict[str, int]:
    """Return a point's sizes under the names of `Timing`; a size of 0 is left out."""
    if point.op in ("dense", "embedding"):
        return {"m": point.m}
    if point.op in ("copy_out", "copy_in"):
        return {"m": point.m, "n": block_bytes}
    if point.op in ("head", "sampler") or point.op.startswith("host"):
        return {"batch": point.m}
    decodes, chunks = point.decodes, point.chunks
    contexts = [*decodes, *(context for _, context in chunks)]
    counts = {"m": point.tokens} if point.op in ("step", "graph_step") else {}
    counts |= {"heads": config.num_heads, "kv_heads": config.num_kv_heads}
    if point.op == "prefill_attention":
        (tokens, context), *_ = chunks
        return {**counts, "batch": len(chunks), "tokens": tokens, "kv": context - tokens}
    if decodes:
        counts |= {"batch": len(decodes), "kv": max(1, round(sum(decodes) / len(decodes)))}
    if chunks:
        prefix = sum(context - tokens for tokens, context in chunks) // len(chunks)
        counts |= {"tokens": sum(t for t, _ in chunks), "prefix": prefix, "chunks": len(chunks)}
    if point.op != "decode_attention":
        counts["longest"] = max(contexts)
    return counts


class TimingsFile:
    """Rows in memory and on disk. Opening it checks that it may be added to."""

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        if path.suffix != ".csv":
            raise InputError(f"{path}: timings are a .csv file")
        self.path = path
        self.settings_path = path.with_suffix(".settings.json")
        self.rows: list[dict[str, str]] = []
        self.sessions: list[dict[str, object]] = []
        self.settings = dict(settings)
        if path.exists():
            self._check_alike(_json(self.settings_path, path))
            self._read()
        self.save()

    def has(self, counts: Mapping[str, int], op: str) -> bool:
        """Say whether the file holds this operation at these sizes."""
        return self._key({"op": op, **counts}) in {self._key(row) for row in self.rows}

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows and write."""
        self.rows += [{name: str(row.get(name, "")) for name in COLUMNS} for row in rows]
        self.save()

    def save(self) -> None:
        """Write both files, the settings first: rows without them could not be added to."""
        settings = {"schema": 1, "settings": self.settings, "sessions": self.sessions}
        write_whole(self.settings_path, json.dumps(settings, indent=1) + "\n")
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.path, text.getvalue())

    def _check_alike(self, found: object) -> None:
        old = found.get("settings") if isinstance(found, dict) else None
        mine = json.loads(json.dumps(self.settings))
        if not isinstance(old, dict):
            raise InputError(f"{self.settings_path}: holds no settings; name another file with -o")
        for name in mine:
            if old.get(name) != mine[name]:
                theirs, ours = str(old.get(name))[:80], str(mine[name])[:80]
                raise InputError(
                    f"{self.path}: was measured with {name} {theirs}, not {ours}; name another file with -o"
                )
        assert isinstance(found, dict)
        self.sessions = found.get("sessions", [])

    def _read(self) -> None:
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file)
                if tuple(rows.fieldnames or ()) != COLUMNS:
                    raise InputError(f"{self.path}: has other columns than this version's; name another file")
                self.rows = [{name: row[name] or "" for name in COLUMNS} for row in rows]
        except (OSError, csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: cannot be read: {error}") from None

    @staticmethod
    def _key(row: Mapping[str, object]) -> tuple[str, ...]:
        return (str(row["op"]), *(str(row.get(name) or 0) for name in COUNTS))


def _json(path: Path, beside: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"{beside}: lies there without {path.name}, which says how it was measured; name another file"
        ) from None
    except ValueError:
        raise InputError(f"{path}: is not JSON; name another file with -o") from None
