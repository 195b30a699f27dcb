"""Every public trace is read or refused with the reason, with the figures of the traces' README."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED_DATA

from simulator.errors import InputError
from simulator.workload import Workload, describe, read_trace
from simulator.workload.traces.servegen_files import read_clients

TRACES = SHARED_DATA / "traces"
LARGE = "agentic_coding_sessions.jsonl.xz"  # 461 MB decompressed
REFUSED = {
    "servegen_m-large_clients.csv.gz": r"no token counts; they are in servegen_m-large_datasets.jsonl",
    "servegen_m-mid_clients.csv.gz": r"no token counts; they are in servegen_m-mid_datasets.jsonl",
    "servegen_deepseek-r1_datasets.jsonl.gz": "no rates; read its clients.csv instead",
    "servegen_m-small_datasets.jsonl.gz": "no rates; read its clients.csv instead",
    "servegen_mm-image_datasets.jsonl.gz": "no rates; read its clients.csv instead",
    "vidur_arxiv_summarization_llama2_lengths.csv.gz": r"no arrival times \(arrived_at\)",
}
NAMES = sorted(path.name for path in TRACES.glob("*") if path.suffix in (".gz", ".xz"))


def files() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow if name == LARGE else ()) for name in NAMES]


@pytest.mark.parametrize("name", files())
def test_every_file_is_read_or_refused_with_the_reason(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]):
            read_trace(TRACES / name)
        return
    w = read_trace(TRACES / name)
    assert len(w) > 0
    assert f"{len(w):,}" in describe(w)
    if not w.needs_starts:
        assert w.requests[0].num_prompt == w.num_prompt[0]


# Rows read, rows skipped; span, mean rate, peaks in 1/10/60 s, CV, CV 10 min, IDC, equal-time neighbours.
# Azure and Mooncake: tests/test_workload.py.
ARRIVALS = {
    "apex_lmsys_llama_lengths.csv.gz": (1024, 2023.5, 0.506, (4, 1.2, 0.77), 0.998, 1.01, 0.79, 0),
    "apex_creation_llama_lengths.csv.gz": (512, 1097.4, 0.466, (3, 1.2, 0.63), 0.964, 0.95, 1.04, 0),
    "llmservingsim_sharegpt-llama-3.1-8b-300-sps10_lengths.csv.gz": (
        (300, 29.1, 10.26, (16, 11.2, None), 0.942, 0.94, None, 0)
    ),
}
# Mean, p50, p90, p99, min and max of prompts and outputs.
LENGTHS = {
    "apex_lmsys_llama_lengths.csv.gz": ((61.7, 17, 177, 586, 2, 1037), (162.1, 117, 389, 533, 1, 761)),
    "apex_creation_llama_lengths.csv.gz": (
        (307.7, 309, 400, 566, 100, 1232),
        (1144, 1107, 1708, 2341, 236, 3501),
    ),
    "llmservingsim_sharegpt-llama-3.1-8b-300-sps10_lengths.csv.gz": (
        (857.5, 732, 1460, 2765, 262, 3998),
        (652.5, 632, 770, 784, 512, 1021),
    ),
    "llmservingsim_sharegpt-qwen3-32b-300-sps10_lengths.csv.gz": (
        (862.3, 729, 1452, 2768, 257, 4570),
        (665.0, 638, 785, 1001, 512, 1224),
    ),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_are_the_published_ones(name: str, shared_data: Path) -> None:
    info = read_trace(shared_data / "traces" / name).info()
    rows, span, rate, peaks, cv, cv_10min, idc, equal = ARRIVALS[name]
    assert (info["num_requests"], info["equal_time_neighbours"]) == (rows, equal)
    assert info["span"] == pytest.approx(span, abs=0.06)
    assert info["mean_rate"] == pytest.approx(rate, abs=0.006)
    for peak, published in zip(info["peak_rate"].values(), peaks, strict=True):
        assert published is None or peak == pytest.approx(published, abs=0.006)
    assert info["cv"] == pytest.approx(cv, abs=0.001)
    assert info["cv_10min"] == pytest.approx(cv_10min, abs=0.006)
    assert info["idc_60s"] == pytest.approx(idc, abs=0.006)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_the_published_ones(name: str, shared_data: Path) -> None:
    info = read_trace(shared_data / "traces" / name).info()
    for spread, published in zip((info["prompt"], info["output"]), LENGTHS[name], strict=True):
        assert list(spread.values()) == pytest.approx(published, rel=1e-3, abs=1.0)


def test_burstgpt_counts_its_failures(shared_data: Path) -> None:
    """The README's figures are of all 400 rows; ours leave the 17 failures out."""
    w = read_trace(shared_data / "traces" / "burstgpt_1_head.csv.gz")
    info = w.info()
    assert (len(w), w.skipped, info["equal_time_neighbours"]) == (383, {"prompt < 1": 17}, 4)
    assert info["span"] == 37_269
    assert info["prompt"]["mean"] * 383 / 400 == pytest.approx(520.5, abs=0.06)
    assert info["output"]["mean"] * 383 / 400 == pytest.approx(276.5, abs=0.06)
    assert (info["prompt"]["max"], info["output"]["max"]) == (2126, 2019)
    assert list(info["peak_rate"].values()) == pytest.approx([2, 0.3, 0.133], abs=0.001)
    third = read_trace(shared_data / "traces" / "burstgpt_3_head15.csv.gz")
    assert (len(third), third.num_sessions) == (15, 8)


def test_llmservingsims_ids_are_of_16_tokens(shared_data: Path) -> None:
    w = read_trace(shared_data / "traces" / "llmservingsim_sharegpt-llama-3.1-8b-300-sps10_blocks16.jsonl.gz")
    assert w.blocks is not None
    assert w.blocks.block_size == 16
    full = np.minimum(w.blocks.hit_blocks() * 16, w.num_prompt // 16 * 16)
    assert full.sum() == 19_520
    assert int(w.num_prompt.sum()) == 257_239


def sessions_are_as_published(w: Workload) -> None:
    """README: 49,334 requests of which 27 have no output, so that rows and quantiles differ a little."""
    info = w.info()
    assert (len(w), w.skipped) == (49_307, {"output < 1": 27})
    for spread, published in (
        (info["prompt"], (122_379, 103_659, 233_633, 498_519, 6_343, 894_371)),
        (info["output"], (440.1, 216, 898, 3686, 2, 18_195)),
    ):
        assert list(spread.values()) == pytest.approx(published, rel=2e-3)
    sessions = info["sessions"]
    assert sessions is not None
    assert sessions["think"] is not None
    assert sessions["api_time"] is not None
    assert sessions["think"]["p50"] == 10
    assert sessions["think"]["mean"] == pytest.approx(
        172, rel=0.06
    )  # two sub-agents start 40 h after a request
    assert sessions["think"]["p90"] == pytest.approx(162, rel=0.04)
    assert sessions["think"]["p99"] / 60 == pytest.approx(50, rel=0.02)
    assert sessions["api_time"]["p50"] == pytest.approx(6.1, abs=0.05)
    assert sessions["api_time"]["p99"] == pytest.approx(60.7, abs=0.3)


def test_the_table_of_agents_requests_has_the_published_figures(shared_data: Path) -> None:
    sessions_are_as_published(read_trace(shared_data / "traces" / "agentic_coding_requests.csv.gz"))


def test_the_hundred_small_sessions_are_read_with_their_prefixes(shared_data: Path) -> None:
    w = read_trace(shared_data / "traces" / "agentic_coding_sessions_small100.jsonl.gz")
    assert (len(w) + 1, w.skipped, w.num_sessions) == (2143, {"output < 1": 1}, 100)
    assert w.follows is not None
    assert len(w.follows) == len(w) - 100
    assert w.blocks is not None
    assert (w.blocks.num_ids == w.num_prompt // 64).all()


@pytest.mark.slow
def test_all_sessions_have_the_published_figures(shared_data: Path) -> None:
    w = read_trace(shared_data / "traces" / LARGE)
    sessions_are_as_published(w)
    sessions, prefix = w.info()["sessions"], w.info()["prefix"]
    assert sessions is not None
    assert prefix is not None
    assert sessions["sessions"] == 710
    requests = sessions["requests"]
    assert (requests["p50"], requests["max"]) == (45.5, 561)
    assert requests["mean"] == pytest.approx(69.5, abs=0.06)
    assert requests["p99"] == pytest.approx(341, abs=1)
    assert sessions["duration"]["p50"] == pytest.approx(3589, rel=0.005)
    assert sessions["duration"]["p90"] / 3600 == pytest.approx(6.7, rel=0.01)
    assert prefix["hit_share_blocks"] == pytest.approx(0.963, abs=0.0006)


# Clients, days, total rate (mean, least, most), share of silent client windows, CV p50/p90/p99 and by rate
CLIENTS = {
    "m-large": (162, 14, (195.8, 48.4, 583.0), 69, (1.17, 4.32, 13.2), 3.5),
    "m-mid": (109, 14, (1790, 0, 3445), 52, (1.32, 5.06, 31.0), 12.0),
    "m-small": (43, 14, (1174, 0, 3880), 54, (1.21, 5.52, 26.7), 3.6),
    "deepseek-r1": (73, 1, (16.0, 4.3, 42.5), 70, (1.03, 3.95, 9.7), 2.3),
    "mm-image": (35, 1, (9.5, 4.9, 13.3), 59, (1.37, 4.97, 13.0), 2.2),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_servegens_clients_have_the_published_figures(name: str, shared_data: Path) -> None:
    clients = read_clients(shared_data / "traces" / f"servegen_{name}_clients.csv.gz")
    number, days, rates, silent, cvs, weighted = CLIENTS[name]
    total, busy = clients.total_rate(), clients.rate > 0
    assert (len(np.unique(clients.client)), len(total)) == (number, days * 144)
    assert (total.mean(), total.min(), total.max()) == pytest.approx(rates, rel=0.003, abs=0.06)
    assert 100 * (1 - busy.mean()) == pytest.approx(silent, abs=0.6)
    assert np.percentile(clients.cv[busy], [50, 90, 99]) == pytest.approx(cvs, rel=0.005)
    assert np.average(clients.cv[busy], weights=clients.rate[busy]) == pytest.approx(weighted, abs=0.06)


def test_a_drawn_day_of_deepseek_has_the_published_lengths(shared_data: Path) -> None:
    """README: rate-weighted token counts of all clients."""
    path = shared_data / "traces" / "servegen_deepseek-r1_clients.csv.gz"
    w = read_trace(path, duration_s=86_400)
    prompt, output = w.num_prompt, w.num_output
    assert len(w) / 86_400 == pytest.approx(16.01, abs=0.01)
    assert prompt.mean() == pytest.approx(1268, rel=0.01)
    assert np.percentile(prompt, [50, 99]) == pytest.approx([208, 23_423], rel=0.02)
    assert output.mean() == pytest.approx(1527, rel=0.01)
    assert np.percentile(output, [50, 99]) == pytest.approx([792, 12_607], rel=0.01)


def test_sharegpts_conversations_are_sessions(shared_data: Path) -> None:
    """61,420 human and 67,594 model turns by name; answers that nothing precedes are no requests."""
    w = read_trace(shared_data / "traces" / "sharegpt_v3_turn_lengths_cl100k.csv.gz")
    assert len(w) + sum(w.skipped.values()) == pytest.approx(67_594, abs=20)
    assert w.num_sessions == pytest.approx(17_545, rel=0.01)
    assert w.num_output.max() == 22_267
    assert "need an arrival process" in w.needs_starts
