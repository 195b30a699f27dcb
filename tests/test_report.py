"""The report is one file, says what it must, loads nothing, runs nothing from outside, and repeats."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from toy_run import step_table, toy_run, toy_summary

from simulator.experiments.plots import PLOTS
from simulator.experiments.report import build_report, slowest_html, write_report
from simulator.experiments.report_page import banners_html, figure_html, table_html
from simulator.experiments.report_summary import bottleneck_html, key_figures, percentiles_html, warnings
from simulator.experiments.report_words import FIGURES

HOSTILE = ("</script><script>x()</script>", "<img src=x onerror=x()>")
SLO = {"ttft_ms": 500.0, "tpot_ms": 50.0, "e2el_ms": None}


def report(title: str = "chat-a100", **changes: object) -> str:
    requests, steps = toy_run(60, rate=12)
    summary = toy_summary(requests, steps)
    summary["servetwin"] |= changes  # type: ignore[operator]  # a dict, as toy_summary builds it
    block = "============ Serving Benchmark Result ============"
    return build_report(
        title=title, summary=summary, block=block, requests=requests, steps=steps, num_blocks=160, slo=SLO
    )


@pytest.fixture(scope="module")
def page() -> str:
    return report()


class _Tags(HTMLParser):
    """Collects tags with their attributes, and the text of the page without its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.words.append(data)


def parse(html: str) -> _Tags:
    tags = _Tags()
    tags.feed(html)
    return tags


def own_part(html: str) -> str:
    """Return the page without plotly.js, which is the same in every report."""
    longest = max(re.findall(r"<script>.*?</script>", html, re.S), key=len)
    return html.replace(longest, "")


def test_page_loads_nothing_from_outside(page: str) -> None:
    loads = [(tag, a) for tag, a in parse(page).tags if {"src", "srcset", "action", "data"} & set(a)]
    links = [a["href"] for _, a in parse(page).tags if "href" in a]
    assert loads == []
    assert all(link is not None and link.startswith("#") for link in links)
    assert 'src="http' not in page
    assert "http" not in own_part(page).replace("http-equiv", "")
    assert "default-src 'none'" in page
    assert "showSendToCloud: false" in page


def test_page_has_plotly_once_and_every_figure(page: str) -> None:
    assert page.count("plotly.js v") == 1
    ids = [a["id"] for tag, a in parse(page).tags if tag == "div" and a.get("class") == "plot"]
    assert ids == [f"figure-{kind}" for _, figures in FIGURES.values() for kind in figures]
    assert {f"figure-{kind}" for kind in PLOTS} == set(ids)


def test_page_says_what_a_reader_needs(page: str) -> None:
    words = " ".join(parse(page).words)
    for part in (
        "Misses the SLO",
        "calibrated: A100",
        "Extrapolated: 4.2%",
        "2.5 GiB assumed",
        "with twice the",
    ):
        assert part in words
    for part in (
        "Serving Benchmark Result",
        "batching: chunked",
        "Slowest requests",
        "pooled over all tokens",
    ):
        assert part in words


def test_anchors_lead_somewhere_and_ids_are_unique(page: str) -> None:
    tags = parse(page).tags
    ids = [a["id"] for _, a in tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert {a["href"] for tag, a in tags if tag == "a"} <= {f"#{name}" for name in ids}


def test_same_input_gives_same_bytes(page: str) -> None:
    assert report() == page


def test_file_is_utf8_with_unix_newlines(tmp_path: Path) -> None:
    requests, steps = toy_run(10)
    arguments = {"summary": {}, "block": "", "requests": requests, "steps": steps, "num_blocks": 160}
    write_report(tmp_path / "r.html", title="Ünïcode – 模型", **arguments)  # type: ignore[arg-type]  # mixed dict
    raw = (tmp_path / "r.html").read_bytes()
    assert "Ünïcode – 模型".encode() in raw
    assert b"\r\n" not in raw


def test_a_bare_summary_is_tolerated() -> None:
    requests, steps = toy_run(0)
    html = build_report(title="", summary={}, block="", requests=requests, steps=steps, num_blocks=0)
    assert "No request completed." in html
    assert "None" not in " ".join(parse(html).words)


@pytest.mark.parametrize("name", HOSTILE)
def test_se_02_hostile_names_are_shown_and_never_run(name: str) -> None:
    requests, steps = toy_run(30, rate=12)
    requests.id = [name] * len(requests)
    requests.reason = [name] * len(requests)
    summary = toy_summary(requests, steps)
    own = summary["servetwin"]
    assert isinstance(own, dict)
    own |= {"verdict": name, "provenance": name, "notes": [name], "version": name, "seed": name}
    own |= {"rejected": 3, "rejected_by_reason": {name: 3}, "skipped": {name: 1}, "block_size": name}
    own |= {
        "bottleneck": {"rows": [{"what": name, name: name, "attainment": name}]},
        "scenario": {"name": name, "model": {"name": name}},
    }
    html = build_report(
        title=name, summary=summary, block=name, requests=requests, steps=steps, num_blocks=160, slo=SLO
    )
    assert name not in own_part(html)
    assert "<img" not in own_part(html)
    assert "&lt;" in own_part(html)
    assert [a for _, a in parse(html).tags if any(key.startswith("on") for key in a)] == []
    data = re.search(r'data-for="figure-timeline">(.*?)</script>', html, re.S)
    assert data is not None
    assert "\\u003c" in data[1]
    assert "<" not in data[1]
    shown = json.loads(data[1])["data"][0]["customdata"][0]  # plotly turns &lt; back into < as text
    assert name.replace("<", "&lt;").replace(">", "&gt;") in shown


def test_markup_in_tables_and_banners_is_escaped() -> None:
    name = HOSTILE[0]
    for html in (table_html([name], [[name]], name), banners_html([(name, name)])):
        assert name not in html
        assert "&lt;script&gt;" in html


def test_bottleneck_table_says_what_doubling_brings() -> None:
    row = {"what": "KV blocks", "attainment": 0.98, "attainment_gain": 0.014, "output_throughput": 1234.4}
    html = bottleneck_html({"servetwin": {"bottleneck": {"rows": [row]}}})
    assert re.findall(r"<td[^>]*>([^<]*)", html) == ["KV blocks", "98.0%", "+1.4%", "1,234", "–"]
    assert bottleneck_html({"servetwin": {"bottleneck": None}}) == ""


def test_a_figure_keeps_its_data_through_escaping() -> None:
    requests, steps = toy_run(20)
    figure = PLOTS["timeline"](requests, steps)
    data = re.search(r">(\{.*\})</script>", figure_html(figure, "timeline"), re.S)
    assert data is not None
    assert json.loads(data[1]) == json.loads(figure.to_json(engine="json"))


def test_warnings_name_everything_that_spoils_a_result() -> None:
    own: dict[str, object] = {
        "provenance": "estimated: roofline",
        "extrapolated_share": 0.25,
        "injected": 1000,
        "rejected": 3,
        "rejected_by_reason": {"prompt too long": 3},
        "unfinished": 2,
        "skipped": {"no length": 4},
        "notes": ["3 prompts ran alone"],
    }
    messages = warnings({"servetwin": own})
    assert messages == [
        ("warning", "Step times are estimated from data sheets; nothing was measured on this GPU."),
        ("warning", "Extrapolated: 25.0% of the steps lie outside the measured range."),
        ("warning", "3 of 1,000 requests rejected (3 × prompt too long)."),
        ("warning", "2 of 1,000 requests unfinished."),
        ("warning", "4 rows of the trace were left out: no length."),
        ("note", "3 prompts ran alone."),
    ]


def test_a_sound_run_has_no_warnings() -> None:
    own = {"provenance": "calibrated", "extrapolated_share": 0.0, "rejected": 0, "scenario": {"kv": {}}}
    assert warnings({"servetwin": own}) == []


def test_key_figures_say_whether_the_target_is_met() -> None:
    for attainment, met in ((0.995, True), (0.98, False), (None, None)):
        cards = {
            c.label: c
            for c in key_figures({"servetwin": {"attainment": attainment, "attainment_target": 0.99}})
        }
        assert cards["SLO attainment"].good is met


def test_percentile_table_takes_the_percentiles_it_finds() -> None:
    html = percentiles_html({"mean_ttft_ms": 12.0, "p99_ttft_ms": 99.5, "p99.9_ttft_ms": float("nan")})
    heads = re.findall(r"<th scope[^>]*>([^<]*)", html)
    assert heads == ["latency (ms)", "Mean", "Std", "Median", "P99", "P99.9"]
    assert ">12.00<" in html
    assert "nan" not in html


def test_slowest_requests_are_in_order_and_completed() -> None:
    requests, _ = toy_run(60, rate=12, horizon=4.0)
    shown = re.findall(r"<tr><td>(req-\d+)", slowest_html(requests))
    e2el = dict(zip(requests.id, requests.finish - requests.arrival, strict=True))
    assert len(shown) == 10
    assert [e2el[name] for name in shown] == sorted((e2el[name] for name in shown), reverse=True)


def test_a_report_of_a_hundred_thousand_steps_stays_below_eight_megabytes() -> None:
    n = 100_000
    rng = np.random.default_rng(0)
    end = np.cumsum(rng.uniform(0.01, 0.02, n))
    steps = step_table({"start": list(end - 0.01), "end": list(end)})
    for column in (
        "num_decodes",
        "prefill_tokens",
        "num_running",
        "num_waiting",
        "used_blocks",
        "evicted_blocks",
    ):
        setattr(steps, column, rng.integers(0, 100, n))
    requests, _ = toy_run(5000, rate=100, horizon=0.0)
    html = build_report(title="long", summary={}, block="", requests=requests, steps=steps, num_blocks=100)
    assert len(html.encode()) < 8e6
