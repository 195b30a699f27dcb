"""Record what bundled scenarios and a study of each kind do, and say what differs between two records.

    python scripts/behaviour.py record before        # at the commit where a work starts
    python scripts/behaviour.py record after
    python scripts/behaviour.py diff before after    # exit 1 and a list if any byte differs

A record holds a folder a case, with the files that the command wrote: summaries, decisions, steps,
requests, tables. Versions, paths of this checkout and HTML pages are left out, so a difference is one of
behaviour. Each work states which differences it meant.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = {".json", ".jsonl", ".csv", ".yaml"}
MASKED = re.compile(rb'("?(?:version|servetwin_version)"?: ?)"?[0-9][^",\n}]*"?')
SWEEP = """\
base: tiny-cpu
vary: {scheduler.max_num_seqs: [4, 12], workload.arrivals.rate: [1.2, 2.4]}
replications: 2
metrics: [attainment, p99_ttft_ms, output_throughput]
"""
SEARCH = """\
base: tiny-cpu
vary: {scheduler.max_num_seqs: [2, 4, 8, 12], scheduler.order: [fcfs, sjf_prompt]}
objectives: ["output_throughput:max"]
trials: 6
"""
TRACE = [
    f'{{"timestamp": {400 * i}, "input_length": {1024 + 512 * (i % 3)}, "output_length": 40, '
    f'"hash_ids": {list(range(i % 4 * 10, i % 4 * 10 + 2 + i % 3))}}}\n'
    for i in range(200)
]
STUDIES = {
    "compare": "compare chat-a100 --num-requests 300 --vary scheduler.max_num_batched_tokens=512,2048 "
    "--replications 3 --model-draws 3",
    "compare-policies": "compare thrash-a100 --num-requests 150 "
    "--vary scheduler.victim=last_admitted,most_blocks --vary scheduler.order=fcfs,sjf_prompt",
    "capacity": "capacity tiny-cpu --num-requests 60",
    "capacity-gpus": "capacity chat-a100 --num-requests 200 --rate 12 --max-gpus 4",
    "bounds": "bounds tiny-cpu",
    "cache": "cache trace.jsonl --eviction lru,fifo,gdsf,s3fifo",
    "sweep": "sweep sweep.yaml --workers 1",
    "search": "search search.yaml",
    "fleet": "compare fleet-a100 --num-requests 300 --vary cluster.router=least_outstanding,prefix_affinity",
    "disaggregated": "run chat-a100 --num-requests 200 --log steps --no-report "
    "--set cluster={disaggregation: {prefill: {count: 1}, decode: {count: 1}, link: ib-400g}}",
    "speculation": "run chat-a100 --num-requests 200 --log all --no-report "
    "--set speculative={method: ngram, num_speculative_tokens: 3, acceptance: 0.6}",
    "pipeline": "run chat-a100 --num-requests 200 --log all --no-report "
    "--set parallel.pipeline_parallel_size=2",
}


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield each case's name and the arguments of its command."""
    for path in sorted((ROOT / "simulator" / "scenarios").glob("*.yaml")):
        log = "steps" if path.stem == "fleet-a100" else "all"  # decisions are one replica's
        yield f"run-{path.stem}", ["run", path.stem, "--log", log, "--no-report"]
    for name, line in STUDIES.items():
        command, setting, value = line.partition(" --set ")
        yield name, command.split() + ([setting.strip(), value] if setting else [])


def record(folder: Path, workers: int) -> None:
    """Run every case of this checkout and keep what it wrote under `folder`."""
    folder.mkdir(parents=True)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda case: _record(folder / case[0], case[1]), list(cases())))


def _record(folder: Path, arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, text in (("sweep.yaml", SWEEP), ("search.yaml", SEARCH), ("trace.jsonl", "".join(TRACE))):
            (Path(place) / name).write_text(text, encoding="utf-8")
        out = Path(place) / "out"
        done = subprocess.run(
            [sys.executable, "-m", "simulator", *arguments, "-o", str(out)],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
        )
        print(f"{folder.name}: exit {done.returncode}", flush=True)
        folder.mkdir()
        (folder / "exit.txt").write_text(f"{done.returncode}\n")
        if done.returncode:
            (folder / "error.txt").write_bytes(done.stderr)
            return
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.suffix in KEPT:
                kept = folder / path.relative_to(out)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(MASKED.sub(rb'\1"masked"', path.read_bytes().replace(place.encode(), b".")))


def diff(before: Path, after: Path) -> list[str]:
    """Return a line for each file that differs, with the first keys or the first line that do."""
    files = {path.relative_to(each) for each in (before, after) for path in each.rglob("*") if path.is_file()}
    lines = []
    for name in sorted(files):
        a, b = before / name, after / name
        if not a.is_file() or not b.is_file():
            lines.append(f"{name}: only in {before if a.is_file() else after}")
        elif a.read_bytes() != b.read_bytes():
            lines.append(f"{name}: {_what_differs(a, b)}")
    return lines


def _what_differs(a: Path, b: Path) -> str:
    if a.suffix == ".json":
        one, other = (dict(_leaves(json.loads(path.read_text(encoding="utf-8")))) for path in (a, b))
        changed = [key for key in one | other if one.get(key, "absent") != other.get(key, "absent")]
        shown = [
            f"{key}: {one.get(key, 'absent')!r:.60} -> {other.get(key, 'absent')!r:.60}" for key in changed
        ]
        return f"{len(changed)} values\n    " + "\n    ".join(shown[:12])
    pairs = zip(a.read_bytes().splitlines(), b.read_bytes().splitlines(), strict=False)
    for number, (one_line, other_line) in enumerate(pairs, 1):
        if one_line != other_line:
            return f"line {number}\n    {one_line[:200]!r}\n    {other_line[:200]!r}"
    return "one is longer"


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}[{index}]")
    else:
        yield path, value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="run every case of this checkout")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--workers", type=int, default=2)
    recording.add_argument("--fresh", action="store_true", help="replace the folder")
    comparing = actions.add_parser("diff", help="compare two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.action == "record":
        if given.folder.exists():
            if not given.fresh:
                parser.error(f"{given.folder} exists; --fresh replaces it")
            shutil.rmtree(given.folder)
        record(given.folder, given.workers)
        return
    for folder in (given.before, given.after):
        if not folder.is_dir():
            parser.error(f"{folder}: no such record")
    lines = diff(given.before, given.after)
    print("\n".join(lines) or "no difference")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
