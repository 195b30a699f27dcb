"""`servetwin gpu evidence`: check, measure, replay, in the minutes given; one file holds what came of it.

The file can be sent as it is: machine, versions, date, verdicts, all timings, and the difference of model and
machine with its noise floor. A second call goes on where the first one stopped.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gpu_backend.attention.choose import choose_attention
from gpu_backend.device import choose_device
from gpu_backend.measure.check import PARTS, check, default_model, num_requests, today
from gpu_backend.measure.engine_graphs import EngineGraphs
from gpu_backend.measure.facts import facts, release
from gpu_backend.measure.measure import MakeGraphs, check_minutes, measure, read_config
from gpu_backend.measure.parts import FAILED, PASSED, SKIPPED, Parts, Result, Skip
from gpu_backend.measure.session import Progress

CHECK_SHARE, MEASURE_SHARE = 0.3, 0.65  # of the time left when they begin; the replay gets the rest
REPLAYS = 2  # of the scenario: the second is the noise floor
LEAST_SECONDS = 2.0


@dataclass
class Job:
    """What the three parts share. `deadline` is on `time.monotonic`'s clock."""

    model: str
    device: torch.device
    folder: Path
    deadline: float
    attention: str = "auto"
    threads: int = 1
    graphs: MakeGraphs = EngineGraphs.of
    progress: Progress | None = None
    tell: Callable[[str, Result], object] | None = None

    def minutes(self, share: float = 1.0) -> float:
        """Return a share of the time left; the part is skipped if there is none."""
        seconds = share * (self.deadline - time.monotonic())
        if seconds < LEAST_SECONDS:
            raise Skip("no time is left of the minutes given; call again with the same folder")
        return seconds / 60

    def check(self) -> Result:
        """Run all parts of a check but the replay, which comes last and longer."""
        done = check(
            self.folder,
            device=str(self.device),
            minutes=self.minutes(CHECK_SHARE),
            model=self.model,
            attention=self.attention,
            threads=self.threads,
            parts={name: part for name, part in PARTS.items() if name != "replay"},
            resumes=True,
            graphs=self.graphs,
            tell=self.tell,
        )
        results = done.results.items()
        cut = [name for name, each in results if each["status"] == SKIPPED and name != "graphs"]
        cut += [str(each["cut"]) for _, each in results if each.get("cut")]
        told = f"failed: {', '.join(done.failed)}" if done.failed else "nothing failed"
        status = FAILED if done.failed else PASSED
        return {"status": status, "told": told, **done.to_dict(), "cut": "; ".join(cut)}

    def measure(self) -> Result:
        """Measure, and take all rows into the result."""
        path = self.folder / "timings.csv"
        found = measure(
            self.model,
            path,
            device=str(self.device),
            minutes=self.minutes(MEASURE_SHARE),
            attention=self.attention,
            threads=self.threads,
            graphs=self.graphs,
            progress=self.progress,
        )
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        told = f"{found.num_points + found.num_known} points, {found.num_dropped} dropped"
        cut = f"{found.num_dropped} points" if found.num_dropped else ""
        return {"told": told, **asdict(found), "timings": rows, "cut": cut}

    def replay(self) -> Result:
        """Serve on the wall clock twice, simulate, and compare."""
        from gpu_backend.measure.two_clocks import replay_and_compare

        self.minutes()
        number = num_requests(self.device, self.deadline - time.monotonic(), REPLAYS)
        release(self.device)
        return replay_and_compare(
            self.device,
            self.model,
            number,
            self.folder,
            attention=self.attention,
            threads=self.threads,
            repeat=True,
        )


def evidence(
    out: str | Path,
    model: str | None = None,
    *,
    device: str = "auto",
    minutes: float = 9.0,
    attention: str = "auto",
    threads: int = 1,
    graphs: MakeGraphs = EngineGraphs.of,
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
    job = Job(name, chosen, folder, deadline, attention, threads, graphs, progress, tell)
    head = {"machine": facts(chosen), "model": name, "minutes": minutes, "date": today()}
    book = Parts(folder / "evidence.json", head, True, tell)
    for key, part in (("check", job.check), ("measure", job.measure), ("replay", job.replay)):
        book.run(key, part)
    return book
