"""points.jsonl: a line for every finished run, on the disk before the next is counted.

Whatever ends a sweep, what is finished stays: SIGKILL can leave half a line, which is cut off, and a full
disk leaves what was written before. Each line has the sweep's digest, so that runs of another sweep are
never taken for this one's. A lock keeps a second process out; it goes with the process, so none is stale.

    {"sweep": "3f..", "point": 3, "replication": 0, "keys": {..}, "values": {..}}
    {"sweep": "3f..", "point": 4, "replication": 0, "keys": {..}, "error": "..", "calls": ["mine.py:3 in f"]}
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from simulator.errors import ConfigError, InputError
from simulator.experiments.sweep.points import Sweep
from simulator.experiments.sweep.tasks import Outcome

IDENTITY = "sweep.json"
JOURNAL = "points.jsonl"
HOW_ON = "the same command goes on from there"


class Shard(NamedTuple):
    """One of `num` parts of a sweep, counted from 1."""

    part: int
    num: int

    @property
    def file(self) -> str:
        return f"points-{self.part}-of-{self.num}.jsonl"

    def has(self, run: int) -> bool:
        """Say whether a run, by its place in the sweep, belongs to this part."""
        return run % self.num == self.part - 1


def parse_shard(text: str) -> Shard:
    """Read i/n."""
    part, slash, num = text.partition("/")
    if not (slash and all(each.isascii() and each.isdigit() for each in (part, num))):
        raise ConfigError(f"--shard {text[:40]!r}: write i/n, such as 1/4")
    shard = Shard(int(part[:9]), int(num[:9]))
    if not 1 <= shard.part <= shard.num:
        raise ConfigError(f"--shard {text[:40]!r}: i must be from 1 to n")
    return shard


Key = tuple[int, int]  # point and replication


class Journal:
    """The finished runs of a sweep in a folder; open, it takes more. `told` is what a user must know."""

    def __init__(self, folder: Path, sweep: Sweep, shard: Shard | None = None, fresh: bool = False) -> None:
        self.folder = folder
        self.path = folder / (shard.file if shard else JOURNAL)
        self.found: dict[Key, Outcome] = {}
        self.told: list[str] = []
        self._sweep = sweep
        self._shard = shard
        self._fresh = fresh
        self._file: BinaryIO | None = None

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            self._lock(self._file)
            self._read()
            return self
        except OSError as error:
            self.__exit__(None, None, None)
            raise InputError(f"cannot write {error.filename or self.path}: {error.strerror}") from None
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, key: Key, outcome: Outcome) -> None:
        """Write a finished run to the disk; InputError if it has no room, and the file is as before."""
        assert self._file is not None, "the journal is open"
        end = self._file.seek(0, os.SEEK_END)
        line = self._line(key, outcome)
        try:
            written = 0
            while written < len(line):  # a disk may take a part
                written += os.write(self._file.fileno(), line[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise InputError(self._full(error)) from None
        self.found[key] = outcome

    def finish(self) -> None:
        """Put the lines in order, so that the same sweep leaves the same bytes whatever happened to it."""
        lines = b"".join(self._line(key, self.found[key]) for key in sorted(self.found))
        write_whole(self.path, lines)

    def _line(self, key: Key, outcome: Outcome) -> bytes:
        point, replication = key
        record: dict[str, object] = {
            "sweep": self._sweep.digest,
            "point": point,
            "replication": replication,
            "keys": self._sweep.points[point].keys,
        }
        if outcome.error is None:
            record["values"] = outcome.values
        else:
            record |= {"error": outcome.error, "calls": outcome.calls}
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        return text.encode(errors="backslashreplace")

    def _full(self, error: OSError) -> str:
        return (
            f"cannot write {self.path}: {error.strerror}; the {len(self.found):,} runs finished before are "
            f"kept, and with more room {HOW_ON}"
        )

    def _lock(self, file: BinaryIO) -> None:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: two processes are the user's to keep apart
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(f"{self.path}: another process is running this sweep") from None

    def _read(self) -> None:
        """Read what is finished; of a whole sweep also what its shards have."""
        identity = self.folder / IDENTITY
        if self._fresh:
            for path in self._files():
                os.truncate(path, 0)
            identity.unlink(missing_ok=True)
        elif (self.folder / "scenario.yaml").exists() or (self.folder / "compare.json").exists():
            raise InputError(f"{self.folder}: holds a run or a comparison; name another folder with -o")
        self._compare(identity)
        for path in self._files():
            self._read_file(path)
        if not identity.exists():
            write_whole(identity, (json.dumps(self._sweep.identity, indent=1) + "\n").encode())

    def _files(self) -> list[Path]:
        if self._shard is not None:
            return [self.path]
        return [self.path, *sorted(self.folder.glob("points-*-of-*.jsonl"))]

    def _compare(self, identity: Path) -> None:
        """Raise ConfigError if the folder holds another sweep, and say in what it differs."""
        if not identity.is_file():
            return
        try:
            before = json.loads(identity.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            return  # the lines know, too
        now = self._sweep.identity
        if before == now or not isinstance(before, dict):
            return
        if not any(path.stat().st_size for path in self._files()):
            identity.unlink()  # nothing was finished
            return
        differs = [name for name in (*now, *before) if before.get(name) != now.get(name)]
        raise ConfigError(
            f"{self.folder}: holds runs of another sweep (other {', '.join(dict.fromkeys(differs)):.300}); "
            "--fresh throws them away, -o names another folder"
        )

    def _read_file(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].split(b"\n")[:-1]
        if lines and _parsed(lines[-1]) is None:  # a crash may leave blocks that were never written
            whole -= len(lines.pop()) + 1
        if whole < len(data):
            os.truncate(path, whole)
            self.told.append(
                f"{path.name}: the last line was cut short by what ended the sweep; its run is made again"
            )
        for number, line in enumerate(lines, start=1):
            self._take(line, f"{path}, line {number}")

    def _take(self, line: bytes, place: str) -> None:
        record = _parsed(line)
        if record is None:
            raise InputError(f"{place}: not a run of a sweep; --fresh begins anew")
        if record.get("sweep") != self._sweep.digest:
            raise ConfigError(
                f"{place}: a run of another sweep (other scenario, points, files or version); --fresh throws "
                "such runs away, -o names another folder"
            )
        key, outcome = self._key(record), _outcome(record)
        if key is None or outcome is None:
            raise InputError(f"{place}: not a run of this sweep; --fresh begins anew")
        self.found.setdefault(key, outcome)

    def _key(self, record: Mapping[str, Any]) -> Key | None:
        point, replication = record.get("point"), record.get("replication")
        if type(point) is not int or type(replication) is not int:
            return None
        is_run = point in range(len(self._sweep.points)) and replication in range(
            self._sweep.plan.replications
        )
        return (point, replication) if is_run else None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _outcome(record: Mapping[str, Any]) -> Outcome | None:
    """Return what a line says came of a run, None if it says nothing of the kind."""
    values, error, calls = record.get("values"), record.get("error"), record.get("calls", [])
    if isinstance(values, dict) and error is None:
        is_sound = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values.values())
        return Outcome({name: float(v) for name, v in values.items()}) if is_sound else None
    if isinstance(error, str) and isinstance(calls, list) and values is None:
        return Outcome({}, error, tuple(map(str, calls)))
    return None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file all or not at all; InputError if it cannot be, and the old one stays."""
    half = path.with_name(f".{path.name}.part")
    try:
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}; {HOW_ON}") from None


def runs_of(sweep: Sweep, shard: Shard | None) -> Iterable[Key]:
    """Yield the runs of a sweep, or of one shard of it, in order."""
    num = sweep.plan.replications
    for place in range(sweep.num_runs):
        if shard is None or shard.has(place):
            yield divmod(place, num)
