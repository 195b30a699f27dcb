"""Files from outside are parsed, never executed, and what they say is text in every report."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from command import servetwin
from result_samples import vllm, write

from simulator.config.loading import load_scenario
from simulator.errors import SimulatorError
from simulator.latency.profile_file import load_profile
from simulator.workload.traces import read_trace

HOSTILE = "</script><script>x()</script><img src=x onerror=x()>"
RAW = ("<script>x()", "<img src=x")


class Marker:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.mark.parametrize("suffix", [".pkl", ".pt", ".json", ".jsonl", ".csv", ".yaml"])
def test_se_01_a_pickle_is_refused_wherever_a_file_is_read(suffix: str, marker: Path, tmp_path: Path) -> None:
    path = tmp_path / f"evil{suffix}"
    path.write_bytes(pickle.dumps(Marker(marker)))
    readers: list[Callable[[], object]] = [
        lambda: load_profile(path, "llama-3.1-8b"),
        lambda: read_trace(path),
        lambda: load_scenario(path),
    ]
    for read in readers:
        with pytest.raises(SimulatorError):
            read()
    assert servetwin("import", path).code == 2
    assert not marker.exists()
    pickle.loads(path.read_bytes())  # the control: the file would have done it
    assert marker.exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir", "!!python/name:os.mkdir", "!!python/object/new:os.mkdir"]
)
def test_se_01_yaml_that_names_python_is_refused(tag: str, marker: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: {tag} [{marker}]\n")
    with pytest.raises(SimulatorError, match="tag"):
        load_scenario(path)
    assert not marker.exists()


def test_se_01_a_json_profile_is_read() -> None:
    path = resources.files("simulator") / "profiles" / "a100-80gb-sxm.json"
    assert load_profile(Path(str(path)), "llama-3.1-8b").error is not None


# SE-02: hostile names in a trace, its tenants and the scenario, through every command that writes a page.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of hostile names, and what the commands make of it."""
    top = tmp_path_factory.mktemp("hostile")
    rows = [
        {
            "timestamp": 200 * i,
            "input_length": 40,
            "output_length": 6,
            "hash_ids": [1],
            "id": f"{HOSTILE}{i}",
            "tenant": HOSTILE if i % 2 else "b",
        }
        for i in range(24)
    ]
    (top / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scenario = load_scenario("tiny-cpu").with_(**{"name": HOSTILE, "workload.trace": str(top / "t.jsonl")})
    (top / "s.yaml").write_text(scenario.to_yaml())
    measured = write(top / "r.json", vllm(model_id=HOSTILE, label=HOSTILE, errors=["", "", HOSTILE]))
    sweep = {"base": str(top / "s.yaml"), "vary": {"scheduler.max_num_seqs": [2, 8]}, "design": "grid"}
    (top / "w.yaml").write_text(json.dumps(sweep))
    vary = {"scheduler.max_num_seqs": [2, 8]}
    wanted = {"base": str(top / "s.yaml"), "vary": vary, "objectives": ["mean_e2el_ms:min"], "trials": 2}
    (top / "x.yaml").write_text(json.dumps(wanted))
    compared = ["compare", top / "s.yaml", "--vary", "scheduler.max_num_seqs=2,8"]
    few = ["--replications", "2", "--tolerance", "0.2", "--slo", "e2el:400", "--attainment", "0.5"]
    commands: list[list[object]] = [
        ["run", top / "s.yaml", "--log", "all", "-o", top / "run"],
        [*compared, "-o", top / "compare"],
        [*compared, "--replications", "2", "-o", top / "tournament"],
        ["capacity", top / "s.yaml", "--rates", "1:8", *few, "-o", top / "capacity"],
        ["capacity", top / "s.yaml", "--max-gpus", "3", *few[:2], *few[4:], "-o", top / "gpus"],
        ["sweep", top / "w.yaml", "-o", top / "sweep"],
        ["search", top / "x.yaml", "-o", top / "search"],
        ["bounds", top / "s.yaml", "-o", top / "bounds"],
        ["cache", top / "t.jsonl", "--block-size", "512", "-o", top / "cache"],
        ["import", measured, "-o", top / "imported"],
        ["diff", top / "run", top / "imported", "-o", top / "diff-imported"],
        ["diff", top / "run", top / "run", "-o", top / "diff-run"],
    ]
    for args in commands:
        done = servetwin(*args)
        assert done.code == 0, (args, done.err)
    return top


def test_se_02_every_command_that_writes_pages_is_here(folder: Path) -> None:
    """A new writer of html must be named in `folder`, or in the reason why it is not."""
    elsewhere = {"report_page", "figure_style", "plots", "private_figure"}  # parts of pages
    source = Path(__file__).parents[1] / "simulator" / "experiments"
    writers = {
        str(path.relative_to(source).with_suffix(""))
        for path in source.rglob("*.py")
        if re.search(r"page_html\(|write_html\(", path.read_text())
    }
    known = {
        *("report", "compare_report", "bounds_report", "cache_report", "diff_report"),
        *("capacity/report", "capacity/gpus_report", "sweep/report", "search/search_folder"),
    }
    assert writers - elsewhere <= known, "add the command that writes the page to `folder`"
    pages = {path.parent.name for path in folder.rglob("*.html")}
    assert pages == {
        *(
            "run",
            "compare",
            "tournament",
            "capacity",
            "gpus",
            "sweep",
            "search",
            "bounds",
            "cache",
            "diff-imported",
            "diff-run",
        )
    }


def test_se_02_no_page_holds_markup_from_a_file(folder: Path) -> None:
    for path in folder.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for raw in RAW:
            assert raw not in page, f"{path.relative_to(folder)} holds {raw}"


def test_se_02_the_names_are_still_shown(folder: Path) -> None:
    assert "&lt;script&gt;x()" in (folder / "run" / "report.html").read_text(encoding="utf-8")
