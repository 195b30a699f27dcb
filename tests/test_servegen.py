"""ServeGen: requests drawn from the parameters of clients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError, InputError
from simulator.workload import read_trace

HEAD = "client,window_start_s,rate_rps,cv,pattern,param1,param2\n"
STEADY = "0,0,2.0,0.1,Gamma,100,0.005\n0,600,1.0,0.1,Gamma,100,0.01\n"
BURSTY = "1,0,0.5,3,Weibull,0.4,0.6\n1,600,0,0,,0,0\n"
LAWS = {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{7: 1.0}"}}


def write(tmp_path: Path, clients: str = STEADY + BURSTY, **datasets: object) -> Path:
    rows = datasets or {"0": LAWS, "1": {"0": {"input_tokens": "{500: 1}", "output_tokens": "{9: 2, 11: 2}"}}}
    lines = [json.dumps({"client": int(c), "dataset": d}) for c, d in rows.items()]
    (tmp_path / "m_datasets.jsonl").write_text("\n".join(lines))
    (tmp_path / "m_clients.csv").write_text(HEAD + clients)
    return tmp_path / "m_clients.csv"


def test_each_window_has_its_number_of_requests(tmp_path: Path) -> None:
    w = read_trace(write(tmp_path))
    assert w.tenants is not None
    steady = w.arrival[np.array(w.tenants) == "client-0"]
    bursty = w.arrival[np.array(w.tenants) == "client-1"]
    assert np.histogram(steady, [0, 600, 1200])[0].tolist() == [1200, 600]
    assert np.histogram(bursty, [0, 600, 1200])[0].tolist() == [300, 0]
    gaps = np.diff(steady[steady < 600])
    assert gaps.std() / gaps.mean() == pytest.approx(0.1, abs=0.02)
    assert np.diff(bursty).std() / np.diff(bursty).mean() == pytest.approx(3, rel=0.3)


def test_lengths_are_the_clients_own(tmp_path: Path) -> None:
    w = read_trace(write(tmp_path))
    assert w.tenants is not None
    mine = np.array(w.tenants) == "client-0"
    assert set(w.num_prompt[mine].tolist()) == {10, 20}
    assert w.num_prompt[mine].mean() == pytest.approx(15, abs=0.5)
    assert set(w.num_prompt[~mine].tolist()) == {500}
    assert set(w.num_output[~mine].tolist()) == {9, 11}


def test_images_add_their_tokens_to_the_text(tmp_path: Path) -> None:
    fields = {"text_tokens": "{3: 1}", "image_count": "{0: 1, 2: 1}", "image_tokens": "{100: 1, 200: 1}"}
    w = read_trace(write(tmp_path, STEADY, **{"0": {"0": fields | {"output_tokens": "{0: 1}"}}}))
    assert set(w.num_prompt.tolist()) == {3, 203, 303, 403}
    assert w.num_prompt.mean() == pytest.approx(153, rel=0.05)
    assert (w.num_output == 1).all()
    assert "1,800 requests with zero prompt or output tokens have one" in w.notes


def test_a_part_is_drawn_at_the_files_own_times_and_the_seed_fixes_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    part = read_trace(path, start_s=300, duration_s=600)
    assert part.arrival[0] >= 300
    assert part.arrival[-1] < 900
    assert part.window(300, 600).arrival[0] == part.arrival[0] - 300
    again, other = (read_trace(path, start_s=300, duration_s=600, seed=s) for s in (0, 1))
    assert part.arrival.tolist() == again.arrival.tolist() != other.arrival.tolist()
    assert any("drawn from these parameters: 300 s to 900 s, seed 0" in note for note in part.notes)


def test_clients_without_token_counts_are_left_out_and_said(tmp_path: Path) -> None:
    w = read_trace(write(tmp_path, **{"0": LAWS, "1": {"0": {"input_tokens": "{}", "output_tokens": "{}"}}}))
    assert w.tenants is not None
    assert set(w.tenants) == {"client-0"}
    assert any("m_datasets.jsonl are left out: 14.3% of the requests" in note for note in w.notes)


def test_rows_that_cannot_be_are_counted(tmp_path: Path) -> None:
    bad = "2,0,1,1,Pareto,1,1\n3,0,1,1,Gamma,0,1\n4,0,nan,1,Gamma,1,1\n"
    bad += "x,0,1,1,Gamma,1,1\n5,0,1e12,1,Gamma,1,1\n"
    w = read_trace(write(tmp_path, STEADY + bad))
    assert len(w) == 1800
    assert len([note for note in w.notes if note.startswith("skipped 1 of 7 rows")]) == 5


@pytest.mark.parametrize(
    "law",
    ["{1: -1}", "{-5: 1}", "{1: 0}", "{1: 1, 2}", "{1e99: 1}", "__import__('os')", "{1: 1-2-3}", 7, ["{}"]],
)
def test_laws_that_cannot_be_are_named_and_never_run(law: object, tmp_path: Path) -> None:
    path = write(tmp_path, **{"0": {"0": {"input_tokens": law, "output_tokens": "{1: 1}"}}})
    with pytest.raises(InputError, match=r"m_datasets.jsonl, line 1: input_tokens must|no client with token"):
        read_trace(path)


def test_a_missing_datasets_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m_clients.csv").write_text(HEAD + STEADY)
    with pytest.raises(
        InputError, match=r"they are in m_datasets.jsonl \(or .gz, .xz\), which is not beside"
    ):
        read_trace(tmp_path / "m_clients.csv")


def test_parts_that_cannot_be_drawn_are_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(ConfigError, match="spans 0 to 1200 s, got 5000"):
        read_trace(path, start_s=5000)
    huge = write(tmp_path, "0,0,100000,1,Gamma,1,1\n")
    with pytest.raises(ConfigError, match="60,000,000 requests; 20,000,000 at most"):
        read_trace(huge, duration_s=600)
    with pytest.raises(InputError, match="no client ever sends"):
        read_trace(write(tmp_path, "0,0,0,0,,0,0\n"))
