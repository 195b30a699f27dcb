"""Headless Chromium without a network, driven over a pipe: what a page does when it is opened from disk.

The protocol is Chrome's DevTools protocol (`--remote-debugging-pipe`): JSON messages that end with a zero
byte, read by the browser from descriptor 3 and written to descriptor 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTH, HEIGHT = 1200, 900
PATIENCE_S = 60.0
"""A slow machine is no fault; a browser that hangs is one."""
_FREE = 10  # descriptors from here on are not in the way of 3 and 4
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--proxy-server=127.0.0.1:9",  # nobody listens there: no network
    "--host-resolver-rules=MAP * ~NOTFOUND",
    f"--window-size={WIDTH},{HEIGHT}",
    "--remote-debugging-pipe",
)

_START = """import os, sys
_, source, sink, *command = sys.argv
os.dup2(int(source), 3)
os.dup2(int(sink), 4)
os.execv(command[0], command)"""


class Box(NamedTuple):
    """Where something is on the screen, in pixels."""

    x: float
    y: float
    width: float
    height: float


class Browser:
    """A browser with one page at a time. `errors` and `requests` are of the page that was opened last."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        their_ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE) for fd in (theirs_in, theirs_out)]
        browser = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, their_ends), *browser],
            pass_fds=their_ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *their_ends):
            os.close(fd)
        self._in, self._out, self._read = ours_in, ours_out, b""
        self._number, self._session, self._events = 0, "", list[dict[str, Any]]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **params: object) -> Any:
        """Call the protocol and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self._number:
            self._events.append(found)
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._read:
            ready = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]
            piece = os.read(self._in, 1 << 20) if ready else b""
            assert piece, "the browser ended or does not answer"
            self._read += piece
        message, self._read = self._read.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, page: Path) -> None:
        """Open a file and wait until its scripts have run and plotly has drawn."""
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.02)

    def box(self, element: str) -> Box:
        """Scroll an element, given as an expression, into view and say where it is."""
        self.run(f"({element}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return Box(*self.run(f"(r => [r.x, r.y, r.width, r.height])(({element}).getBoundingClientRect())"))

    def click(self, element: str) -> None:
        """Click in the middle of an element."""
        box = self.box(element)
        x, y = box.x + box.width / 2, box.y + box.height / 2
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move, press, drag or release; "mouseDragged" is a move with the button down."""
        held = kind in ("mousePressed", "mouseDragged")
        kind, button = kind.replace("Dragged", "Moved"), "none" if kind == "mouseMoved" else "left"
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=int(held), clickCount=1
        )

    @property
    def errors(self) -> list[str]:
        """Exceptions and what the console shows as an error or a warning, refused requests included."""
        self.run("1")  # whatever is on its way has come
        found = []
        for event in self._events:
            method, params = event["method"], event["params"]
            shown = params.get("type") in ("error", "warning", "assert")
            logged = method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
            if (
                method == "Runtime.exceptionThrown"
                or (method == "Runtime.consoleAPICalled" and shown)
                or logged
            ):
                found.append(json.dumps(params)[:2000])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        self.run("1")
        asked = [e["params"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in asked]
