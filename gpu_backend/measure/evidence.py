"""`servetwin gpu evidence`: check, measure, replay, in the minutes given; one file holds what came of it.

The file can be sent as it is: machine, versions, date, verdicts, all timings, and the difference of model and
machine with its noise floor. A second call goes on where the first one stopped.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gpu_backend.attention.choose import choose_attention
from gpu_backend.device import choose_device
from gpu_backend.measure.bench import release
from gpu_backend.measure.check import PARTS, Context, check, default_model, today
from gpu_backend.measure.facts import facts
from gpu_backend.measure.measure import MakeGraphs, check_minutes, measure, read_config
from gpu_backend.measure.parts import FAILED, PASSED, Parts, Result, Skip
from gpu_backend.measure.session import Progress

CHECK_SHARE, MEASURE_SHARE = 0.3, 0.65  # of the time left when they begin; the replay gets the rest
REPLAYS = 2  # of the scenario: the second is the noise floor
LEAST_SECONDS = 2.0


def evidence(
    out: str | Path,
    model: str | None = None,
    *,
    device: str = "auto",
    minutes: float = 9.0,
    attention: str = "auto",
    threads: int = 1,
    graphs: MakeGraphs | None = None,
    progress: Progress | None = None,
    tell: Callable[[str, Result], object] | None = None,
) -> Parts:
    """Run all three within the minutes and write `out`/evidence.json after each; it says what was cut."""
    check_minutes(minutes)
    chosen, folder = choose_device(device), Path(out)
    choose_attention(attention, chosen)
    name = model or default_model(chosen)
    read_config(name)
    deadline = time.monotonic() + 60 * minutes
    head = {"machine": facts(chosen), "model": name, "minutes": minutes, "date": today()}
    book = Parts(folder / "evidence.json", head, True, tell)

    def left(share: float = 1.0) -> float:
        seconds = share * (deadline - time.monotonic())
        if seconds < LEAST_SECONDS:
            raise Skip("no time is left of the minutes given; call again with the same folder")
        return seconds / 60

    def checked() -> Result:
        parts = {key: part for key, part in PARTS.items() if key != "replay"}  # it comes last, longer
        done = check(
            folder,
            device=device,
            minutes=left(CHECK_SHARE),
            model=name,
            attention=attention,
            threads=threads,
            parts=parts,
            resumes=True,
            graphs=graphs,
            tell=tell,
        )
        skipped = [
            key for key, each in done.results.items() if each["status"] == "skipped" and key != "graphs"
        ]
        cut = [*skipped, *(str(each["cut"]) for each in done.results.values() if each.get("cut"))]
        told = f"failed: {', '.join(done.failed)}" if done.failed else "nothing failed"
        status = FAILED if done.failed else PASSED
        return {"status": status, "told": told, **done.to_dict(), **({"cut": "; ".join(cut)} if cut else {})}

    def measured() -> Result:
        path = folder / "timings.csv"
        found = measure(
            name,
            path,
            device=device,
            minutes=left(MEASURE_SHARE),
            attention=attention,
            threads=threads,
            graphs=graphs,
            progress=progress,
        )
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        told = f"{found.num_points + found.num_known} points, {found.num_dropped} dropped"
        cut = {"cut": f"{found.num_dropped} points"} if found.num_dropped else {}
        return {"told": told, **asdict(found), "timings": rows, **cut}

    def replayed() -> Result:
        from gpu_backend.measure.two_clocks import replay_and_compare

        seconds = 60 * left()
        began = time.monotonic()
        context = Context(chosen, name, attention, threads, folder, began, began + seconds)
        number = context.num_requests(REPLAYS)
        release(chosen)
        return replay_and_compare(
            chosen, name, number, folder, attention=attention, threads=threads, repeat=True
        )

    for key, part in (("check", checked), ("measure", measured), ("replay", replayed)):
        book.run(key, part)
    return book
