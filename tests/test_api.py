"""What a notebook types: simulate with anything changed, look at the result, keep it, load it, compare it."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import simulator
from simulator import api
from simulator.api import Result, Scenario, diff, load_run, load_scenario, simulate
from simulator.batch import Batch
from simulator.errors import ConfigError, InputError, SimulatorError
from simulator.experiments.plots import PLOTS
from simulator.request import Sequence
from simulator.schedulers import Chunked
from simulator.schedulers.context import Context
from simulator.workload.workload import Workload


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate("tiny-cpu")


def shortest(seq: Sequence, ctx: Context) -> int:
    return seq.num_prompt


class Solo(Chunked):
    """Admit only when nobody runs."""

    def schedule(self, now: float) -> Batch:
        batch = self.open_batch(now)
        self.take_running(batch)
        if not self.running:
            self.admit(batch)
        return self.commit(batch)


BUSY = {"workload.arrivals.rate": 9}


def test_every_public_name_is_there() -> None:
    for name in api.__all__:
        assert getattr(simulator, name) is getattr(api, name)
        assert name in dir(simulator)
    names: dict[str, object] = {}
    exec("from simulator import *", names)
    assert set(api.__all__) <= names.keys()
    for name in ("simulate", "load_scenario", "load_trace", "load_profile", "kv_size", "load_run", "diff"):
        assert callable(names[name])


def test_only_public_names_are_forwarded() -> None:
    for name in ("judge", "np", "pytest_plugins", "_frame", "__wrapped__", "nope"):
        with pytest.raises(AttributeError, match=f"module 'simulator' has no attribute '{name}'"):
            getattr(simulator, name)
    assert isinstance(simulator.kv, ModuleType)  # type: ignore[attr-defined]


def test_a_bare_import_loads_nothing() -> None:
    code = (
        "import simulator, sys; assert 'simulator.api' not in sys.modules;"
        "from simulator import kv_size, Request; assert callable(kv_size);"
        "import simulator.kv.size; from simulator import kv_size; assert callable(kv_size)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_scenario_comes_by_name_file_dict_or_object(tmp_path: Path) -> None:
    scenario = load_scenario("tiny-cpu")
    (tmp_path / "s.yaml").write_text(scenario.to_yaml())
    for source in ("tiny-cpu", tmp_path / "s.yaml", str(tmp_path / "s.yaml"), scenario.to_dict(), scenario):
        assert load_scenario(source) == scenario
    assert isinstance(scenario, Scenario)


def test_a_policy_is_a_name_a_function_or_a_class(result: Result) -> None:
    named = simulate("tiny-cpu", batching="chunked", order="fcfs", victim="last_admitted", bottleneck=False)
    assert named.summary["mean_e2el_ms"] == result.summary["mean_e2el_ms"]
    plain = simulate("tiny-cpu", set=BUSY)
    by_order = simulate("tiny-cpu", set=BUSY, order=shortest)
    assert by_order.scenario.scheduler.order == "shortest"
    assert by_order.summary["mean_ttft_ms"] != plain.summary["mean_ttft_ms"]
    alone = simulate("tiny-cpu", set=BUSY, batching=Solo)
    assert alone.scenario.scheduler.batching == "Solo"
    assert alone.steps["num_running"].max() < plain.steps["num_running"].max()
    by_victim = simulate("tiny-cpu", set=BUSY, victim=lambda seq, ctx: seq.num_tokens)
    assert by_victim.summary["completed"] == 40
    with pytest.raises(ConfigError, match=r"scheduler\.order: unknown 'fcsf'; did you mean fcfs"):
        simulate("tiny-cpu", order="fcsf")


def test_a_policy_may_be_an_object_without_a_name() -> None:
    class Order:
        def __call__(self, seq: Sequence, ctx: Context) -> int:
            return seq.num_prompt

    assert simulate("tiny-cpu", order=Order()).scenario.scheduler.order == "Order"


def test_an_error_of_ones_own_function_keeps_its_traceback() -> None:
    with pytest.raises(ConfigError, match=r"^scheduler\.order: <lambda> \(.*'nope' in step 0 at ") as caught:
        simulate("tiny-cpu", order=lambda seq, ctx: seq.nope)  # type: ignore[attr-defined]
    cause = caught.value.__cause__
    assert isinstance(cause, AttributeError)
    assert "seq.nope" in "".join(traceback.format_exception(cause))


def test_set_and_seed_change_the_scenario() -> None:
    made = simulate("tiny-cpu", set={"workload.num_requests": np.int64(5), "slo.ttft_ms": None}, seed=3)
    assert made.scenario.seed == 3
    assert made.summary["completed"] == 5
    with pytest.raises(ConfigError, match=r"kv\.block_sise: unknown key"):
        simulate("tiny-cpu", set={"kv.block_sise": 3})


def test_a_workload_of_ones_own_is_served() -> None:
    arrival, lengths = np.array([0.0, 1.0]), np.array([20, 30])
    own = Workload(arrival, lengths, lengths // 2, source="mine").with_max_tokens(None, 512)
    made = simulate("tiny-cpu", workload=own)
    assert made.requests["num_prompt"].tolist() == [20, 30]
    assert made.decisions["finished"].explode().dropna().tolist() == ["0", "1"], "the same workload again"
    assert len(own.requests) == 2


def test_frames_hold_requests_steps_and_decisions(result: Result) -> None:
    assert len(result.requests) == 40
    assert set(result.requests["status"]) == {"completed"}
    assert (result.requests["finish"] > result.requests["first_token"]).all()
    steps, decisions = result.steps, result.decisions
    assert len(steps) == len(decisions) == result.summary["servetwin"]["num_steps"]  # type: ignore[index]
    assert (steps["start"] == decisions["t"]).all()
    assert (steps["num_decodes"] == decisions["decodes"]).all()
    assert sorted(decisions["finished"].explode().dropna(), key=int) == result.requests["id"].tolist()


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_of_plot_is_drawn(kind: str, result: Result) -> None:
    assert len(result.plot(kind).data) > 0


def test_an_unknown_plot_is_told(result: Result) -> None:
    with pytest.raises(ConfigError, match=r"plot: unknown kind 'latencyy'; did you mean latency\?"):
        result.plot("latencyy")


def test_a_figure_in_a_notebook_offers_no_upload(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io

    figure = result.plot("latency")
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    bundle = figure._repr_mimebundle_()["application/vnd.plotly.v1+json"]
    assert bundle["config"]["showSendToCloud"] is False
    assert bundle["config"]["plotlyServerURL"] == ""
    for html in (figure.to_html(include_plotlyjs=False), figure._repr_html_()):
        assert '"showSendToCloud": false' in html
    shown = []
    monkeypatch.setattr(plotly.io, "show", lambda *args, **kwargs: shown.append(kwargs["config"]))
    figure.show(config={"scrollZoom": True})
    monkeypatch.setattr(plotly.io.renderers, "render_on_display", True)
    figure._ipython_display_()
    assert [config["showSendToCloud"] for config in shown] == [False, False]
    assert shown[0]["scrollZoom"] is True


def test_a_result_prints_block_provenance_and_verdict(result: Result) -> None:
    text = str(result)
    assert "Serving Benchmark Result" in text
    assert "linear coefficients given by the user" in text
    assert "SLO met: 100.0 % of 40 requests" in text


def test_hostile_names_are_escaped_in_a_notebook(tmp_path: Path) -> None:
    name = "</script><script>x()</script><img src=x onerror=x()>"
    made = simulate("tiny-cpu", set={"name": name, "workload.num_requests": 3})
    page = made.report(tmp_path / "r.html").read_text(encoding="utf-8")
    for html in (made._repr_html_(), page):
        assert "<script>x()" not in html
        assert "<img src=x" not in html
        assert "&lt;/script&gt;&lt;script&gt;x()&lt;/script&gt;&lt;img src=x onerror=x()&gt;" in html


def test_a_result_survives_being_saved_and_loaded(result: Result, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    again = load_run(folder)
    assert again.summary == result.summary
    assert again.scenario == result.scenario
    assert str(again) == str(result)
    assert again._repr_html_() == result._repr_html_()
    for name in ("requests", "steps", "decisions"):
        one, other = getattr(again, name), getattr(result, name)
        assert one.to_csv() == other.to_csv()
    again.save(tmp_path / "copy")
    for name in ("summary.json", "requests.csv", "scenario.yaml", "decisions.jsonl", "report.html"):
        if (folder / name).exists():
            assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(InputError, match="not a run folder"):
        load_run(tmp_path)


def test_a_saved_run_that_cannot_be_repeated_says_so(tmp_path: Path) -> None:
    made = simulate("tiny-cpu", workload=Workload(np.array([0.0]), np.array([9]), np.array([3])))
    again = load_run(made.save(tmp_path / "run"))
    assert len(again.requests) == 1
    with pytest.raises(SimulatorError, match="its scenario gives another result"):
        _ = again.steps


def test_two_results_are_compared(result: Result, tmp_path: Path) -> None:
    other = simulate("tiny-cpu", set=BUSY)
    found = diff(result, other)
    change = {each.name: each for each in found.metrics}["mean_ttft_ms"]
    assert change.a == result.summary["mean_ttft_ms"]
    assert change.b == other.summary["mean_ttft_ms"]
    assert change.percent is not None
    assert change.percent > 0
    assert found.over({"mean_ttft_ms": 1.0})
    assert not diff(result, result.save(tmp_path / "run")).over({"mean_ttft_ms": 0.0})


def test_columns_can_be_multiplied_without_overflow() -> None:
    steps = simulate("tiny-cpu").steps
    assert {str(kind) for kind in steps.dtypes} <= {"int64", "float64"}
