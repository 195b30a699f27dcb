"""The scenario pages: one command, every number from a tournament, the same bytes each time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from simulator.config.build import NO_POLICIES
from simulator.config.loading import load_scenario
from simulator.experiments.compare import compare

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "scenario_pages.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scenario_pages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenario_pages"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tiny_pages_are_written_the_same_twice(script: ModuleType, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        script.main(["--tiny", "-o", str(tmp_path / folder)])
    pages = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert pages == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    names = {page.name for page in script.PAGES}
    assert names == {
        *(
            "offline",
            "online",
            "low-latency",
            "long-context",
            "agentic",
            "two-tenants",
            "completion",
            "fleet",
        ),
    }
    assert pages.keys() == {*(f"{name}.md" for name in names), "README.md"}


def test_a_page_says_what_its_tournament_says(script: ModuleType) -> None:
    """A page whose candidate wins recommends it; one whose candidate loses recommends nothing."""
    base = load_scenario("tiny-cpu").with_(**{"workload.arrivals.rate": 5.0})
    for seats, better in ((2, 6), (6, 2)):
        page = script.Page("x", "X", "tiny-cpu", "p99_ttft_ms", (), script.settings(script.SEATS, better))
        base = base.with_(**{"scheduler.max_num_seqs": seats})
        text = script.text_of(page, script.contest(page, base, 5, 0))
        is_win = better > seats
        assert ("| win |" in text) == is_win
        assert (f"**max_num_seqs={better}**: p99_ttft_ms" in text) == is_win
        assert ("**Leave it as it is**" in text) != is_win
        assert "5 replications, requests drawn with another seed each" in text


def test_every_candidate_of_every_page_can_be_run(script: ModuleType) -> None:
    for page in script.PAGES:
        few = load_scenario(page.scenario).with_(**{"workload.num_requests": 3})
        found = compare(few, page.all, metric=page.metric, policies=NO_POLICIES)
        assert list(found.runs) == list(page.all)
        assert all(
            other in found.runs["as it is"].summary | found.runs["as it is"].own for other in page.others
        )
