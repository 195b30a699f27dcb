"""Every kind of report opened from disk in headless Chromium, without a network: what one sees and clicks.

A page makes no console error and asks for nothing; its figures are drawn; nothing is cut off or hidden
sideways at 1,200 pixels; axes are titled; legend, menus and zoom answer to the mouse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from command import servetwin
from measured_runs import measured, saved, simulated
from test_held_out import GPU, fitted
from test_held_out import measured as timings
from test_validate import folder, request

from calibration.checks import Checked
from calibration.fit_report import fit_html
from simulator.experiments.diff import diff
from simulator.experiments.diff_report import save_diff

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")

CALIBRATE = EntryPoint("calibrate", "calibration.cli:app", "servetwin.commands")
HOSTILE = "<img src=x onerror=alert(1)>"
BATCHING = "scheduler.batching=chunked,continuous,static"
SWEEP = """\
base: tiny-cpu
vary: {scheduler.max_num_seqs: [2, 4, 12], scheduler.max_num_batched_tokens: [48, 96]%s}
replications: 2
"""
THREE_AXES = ", scheduler.order: [fcfs, lifo]"


def command(*args: object) -> Callable[[Path], Path]:
    def make(out: Path) -> Path:
        done = servetwin(*args, "-o", out, commands=[CALIBRATE])
        assert done.code in (0, 1), done.err  # 1: a check that the command makes beside the page
        return next(out.glob("*.html"))

    return make


def swept(axes: str) -> Callable[[Path], Path]:
    def make(out: Path) -> Path:
        file = out.with_suffix(".yaml")
        file.write_text(SWEEP % axes)
        return command("sweep", file, "--workers", 1)(out)

    return make


def replayed(out: Path) -> Path:
    """Requests that share prefixes; the name of the trace is a hostile one."""
    rows = [
        f'{{"timestamp": {i * 500}, "input_length": 64, "output_length": 8, "hash_ids": [0, {i % 5}]}}'
        for i in range(40)
    ]
    out.mkdir()
    trace = out / f"{HOSTILE}.jsonl"
    trace.write_text("\n".join(rows))
    return command("cache", trace, "--capacity-blocks", "2,4", "--block-size", 32)(out)


def parted(out: Path) -> Path:
    """A measured run against a simulated one: errors, their parts, decisions."""
    save_diff(diff(saved(measured()), saved(simulated())), out)
    return out / "diff.html"


def fit(out: Path) -> Path:
    out.mkdir()
    rows = timings(0.02)
    page = out / "fit.html"
    page.write_text(fit_html([fitted(0.02)], Checked(rows, [], len(rows)), GPU.name, HOSTILE))
    return page


def validated(out: Path) -> Path:
    run = folder(out.with_name("measured"), [request(i) for i in range(12)])
    return command("calibrate", "validate", "rtx4090", "--measured", run)(out)


PAGES: dict[str, Callable[[Path], Path]] = {
    "run": command("run", "tiny-cpu", "--set", f"name={HOSTILE}"),
    "compare": command("compare", "tiny-cpu", "--vary", BATCHING),
    "tournament": command("compare", "tiny-cpu", "--vary", BATCHING, "--replications", 4),
    "capacity": command(
        *("capacity", "tiny-cpu", "--replications", 3, "--tolerance", 0.1),
        *("--vary", "scheduler.max_num_batched_tokens=48,96", "--set", "hardware.price_per_gpu_hour=2.5"),
    ),
    "fewest GPUs": command(
        *("capacity", "tiny-cpu", "--replications", 2, "--rate", 12, "--max-gpus", 8),
        *("--vary", "cluster.router=random,least_outstanding", "--set", "hardware.price_per_gpu_hour=2.5"),
    ),
    "tournament with model draws": command(
        *("compare", "chat-a100", "--num-requests", 60, "--replications", 3, "--model-draws", 3),
        *("--metric", "mean_ttft_ms", "--vary", "scheduler.max_num_seqs=64,128,2"),
    ),
    "sweep of two keys": swept(""),
    "sweep of three keys": swept(THREE_AXES),
    "bounds": command("bounds", "tiny-cpu"),
    "cache": replayed,
    "diff": parted,
    "fit": fit,
    "validate": validated,
}
QUICK = ("tournament",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def slow_but(names: tuple[str, ...]) -> list[object]:
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]


@pytest.mark.parametrize("name", slow_but(QUICK))
def test_a_page_is_whole_in_a_browser(
    browser: Browser, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGES[name](tmp_path / "page")
    browser.open(page)
    assert browser.run("plots.length") > 0
    assert browser.run(UNDRAWN) == []
    assert browser.run(SIDEWAYS) == []
    assert browser.run(CUT_OFF) == []
    assert browser.run(OVERLAPPING) == []
    assert browser.run(UNTITLED) == []
    _use_legend(browser)
    _use_menu(browser)
    _use_zoom(browser)
    assert browser.errors == []
    asked = [url for url in browser.requests if not url.startswith("data:")]  # of a heat map
    assert asked == [page.resolve().as_uri()]


def test_the_browser_tells_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    """Each check above can fail."""
    page = tmp_path / "page.html"
    page.write_text(
        "<img src=https://example.org/x.png><script>var plots = []; console.error('told')</script>"
        "<div class=scroll style='overflow-x: auto; width: 9px'><table><caption>wide</caption></table></div>"
        "<div class=plot><svg class=main-svg width=200 height=60><text x=-20 y=30>left of it</text>"
        "<g class=xtick><text x=90 y=30>one</text></g><g class=xtick><text x=95 y=30>two</text></g></svg>"
        "</div>"
        "<script>throw new Error('thrown')</script>"
    )
    browser.open(page)
    assert browser.run(SIDEWAYS) == ["wide"]
    assert browser.run(CUT_OFF) == ["left of it"]
    assert browser.run(OVERLAPPING) == ["one / two"]
    told = " ".join(browser.errors)
    assert "told" in told
    assert "thrown" in told
    assert "https://example.org/x.png" in browser.requests


UNDRAWN = """plots.filter((div) => !div.querySelector(
  ".main-svg .trace path, .main-svg .heatmaplayer image, .main-svg .annotation-text")).map((div) => div.id)"""
SIDEWAYS = """[document.documentElement, ...document.querySelectorAll(".scroll, pre, .plot")]
  .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.textContent.trim())
  .map((part) => (part.id || part.textContent).slice(0, 60))"""
# Text of a figure that leaves it, or that lies over the titles and ticks of its axes.
CUT_OFF = """[...document.querySelectorAll(".plot")].flatMap((div) => {
  const edge = div.getBoundingClientRect();
  return [...div.querySelectorAll(".main-svg text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1
      || box.top < edge.top - 1 || box.bottom > edge.bottom + 1);
  }).map((text) => text.textContent);
})"""
OVERLAPPING = """[...document.querySelectorAll(".plot")].flatMap((div) => {
  const words = [...div.querySelectorAll(".xtick text, .ytick text, .xtitle, .ytitle, .annotation-text, "
    + ".legendtext, [class^=xtitle], [class^=x2title], [class^=ytitle], [class^=y2title]")];
  const boxes = [...new Set(words)].map((text) => [text.textContent, text.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.height);
  const over = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 2 < b.bottom
    && b.top + 2 < a.bottom;
  return boxes.flatMap(([text, box], i) => boxes.slice(i + 1)
    .filter(([, other]) => over(box, other)).map(([other]) => `${text} / ${other}`));
})"""
# An axis with numbers has a title, or one that it shares does; names of candidates need none.
UNTITLED = """plots.flatMap((div) => Object.keys(div._fullLayout).filter((key) => /^[xy]axis\\d*$/.test(key))
  .filter((key) => {
    const axis = div._fullLayout[key];
    return axis.showticklabels && axis.type !== "category" && axis.tickmode !== "array"
      && !axis.matches && !axis.title.text;
  }).map((key) => `${div.id} ${key}`))"""


def _use_legend(browser: Browser) -> None:
    """Click the first name of a figure's legend: its line goes, and comes back at another click."""
    if not browser.run("Boolean(document.querySelector('.plot .legendtoggle'))"):
        return
    figure = "plots.find((div) => div.querySelector('.legendtoggle'))"
    hidden = f"{figure}._fullData.some((line) => line.visible === 'legendonly')"
    assert not browser.run(hidden)
    browser.click(f"{figure}.querySelector('.legendtoggle')")
    browser.until(hidden)
    browser.click(f"{figure}.querySelector('.legendtoggle')")
    browser.until(f"!{hidden}")


def _use_menu(browser: Browser) -> None:
    """Choose the second entry of a figure's menu: other lines are shown."""
    if not browser.run("Boolean(document.querySelector('.plot .updatemenu-header'))"):
        return
    figure = "plots.find((div) => div.querySelector('.updatemenu-header'))"
    shown = f"JSON.stringify({figure}._fullData.map((line) => line.visible))"
    before = browser.run(shown)
    browser.click(f"{figure}.querySelector('.updatemenu-header')")
    browser.until(f"{figure}.querySelectorAll('.updatemenu-dropdown-button').length > 1")
    browser.click(f"{figure}.querySelectorAll('.updatemenu-dropdown-button')[1]")
    browser.until(f"{shown} !== {before!r}")


def _use_zoom(browser: Browser) -> None:
    """Drag over a stretch of one figure over time: the others show the same stretch."""
    if browser.run("timed.length") < 2:
        return
    box = browser.box("timed[0].querySelector('.nsewdrag')")
    across = [box.x + share * box.width for share in (0.3, 0.45, 0.6)]
    middle = box.y + box.height / 2
    browser.mouse("mouseMoved", across[0], middle)
    browser.mouse("mousePressed", across[0], middle)
    for x in across:
        browser.mouse("mouseDragged", x, middle)
    browser.mouse("mouseReleased", across[-1], middle)
    browser.until("timed[0].layout.xaxis.range[0] > 0")
    browser.until("new Set(timed.map((div) => String(div.layout.xaxis.range))).size === 1")
