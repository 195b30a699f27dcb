"""Reports in a real browser, from disk and without a network: drawn, quiet, and they answer a click.

Skipped where no Chromium is on the PATH. A script put at the end of a copy of each page looks at it, clicks
the first entry of a legend, and leaves what it saw in the title.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command import servetwin

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2400"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--enable-logging=stderr"),
)
LOOK = """
<script>
function press(at, kind) {
  at.dispatchEvent(new MouseEvent(kind, {bubbles: true, cancelable: true, view: window}));
}
function faded() {
  return [...document.querySelectorAll(".legend .traces")].filter(t => t.style.opacity < 1).length;
}
window.addEventListener("load", () => setTimeout(() => {
  const entry = document.querySelector(".legendtoggle"), before = faded();
  if (entry) { press(entry, "mousedown"); press(entry, "mouseup"); press(entry, "click"); }
  setTimeout(() => {
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    const loaded = performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length;
    const plots = document.querySelectorAll(".js-plotly-plot svg.main-svg").length;
    document.title = JSON.stringify({plots, entry: !!entry, changed: faded() - before, loaded, wide});
  }, 2500);
}, 3000));
</script>
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page of every kind that draws."""
    top = tmp_path_factory.mktemp("pages")
    vary = ("--vary", "scheduler.max_num_seqs=2,8")
    few = ("--replications", 3, "--tolerance", 0.1)
    sweep = {"base": "tiny-cpu", "vary": {"scheduler.max_num_seqs": [2, 4, 8]}, "design": "grid"}
    (top / "sweep.yaml").write_text(json.dumps(sweep))
    for args in (
        ("run", "tiny-cpu", "-o", top / "run"),
        ("compare", "tiny-cpu", *vary, "-o", top / "compare"),
        ("compare", "tiny-cpu", *vary, "--replications", 3, "-o", top / "tournament"),
        ("capacity", "tiny-cpu", *few, "-o", top / "capacity"),
        ("sweep", top / "sweep.yaml", "-o", top / "sweep"),
        ("bounds", "tiny-cpu", "-o", top / "bounds"),
    ):
        done = servetwin(*args)
        assert done.code == 0, (args, done.err)
    return top


@pytest.mark.parametrize("kind", ["run", "compare", "tournament", "capacity", "sweep", "bounds"])
def test_a_report_opens_from_disk_and_answers(kind: str, folder: Path) -> None:
    (page,) = (folder / kind).glob("*.html")
    watched = folder / f"{kind}.html"
    watched.write_text(
        page.read_text(encoding="utf-8").replace("</body>", f"{LOOK}</body>"), encoding="utf-8"
    )
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, "--dump-dom", watched.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert told is not None, "the script in the page did not end"
    saw = json.loads(told[1].replace("&quot;", '"'))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    assert saw["plots"] > 0
    assert saw["loaded"] == 0, "a page holds all that it needs"
    assert saw["wide"] <= 0, "nothing is scrolled sideways at 1,200 px"
    if saw["entry"]:
        assert saw["changed"] == 1, "a click in the legend hides what it names"
