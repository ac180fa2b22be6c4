"""A real browser for the tests: Debian's package `chromium`, without a window, spoken to over a pipe.

The DevTools protocol tells what a person at the page could not: every request, every complaint, where each element stands.
Over a pipe (`--remote-debugging-pipe`) it is JSON with a zero byte after it, and needs no package.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60.0


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Browser:
    to_browser: int
    from_browser: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def open(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """The page, loaded anew, in a window of this width. What happened meanwhile is in `events`."""
        self.visit(page.as_uri(), width=width, dark=dark)

    def visit(self, address: str, *, width: int = 1280, dark: bool = False) -> None:
        """As `open`, of a page that a server has."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.media("screen", dark=dark)
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        self.value("document.fonts.ready.then(() => 1)")

    def media(self, kind: str, *, dark: bool) -> None:
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=wanted)
        # What is folded away is shown at the next frame, not at once.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def until(self, script: str) -> None:
        """Wait until an expression of JavaScript is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(script):
            assert time.monotonic() < deadline, f"in {PATIENCE_S:.0f} s it did not become true: {script}"
            time.sleep(0.05)

    def picture(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives. The page's own policy does not bind us."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        kinds = (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Page.javascriptDialogOpening",
        )
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def pdf(self, *, dark: bool = False) -> bytes:
        self.media("", dark=dark)
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser did not answer in {PATIENCE_S:.0f} s"
            more = os.read(self.from_browser, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """Ready, with one empty page; gone afterwards, with its folder."""
    folder = Path(tempfile.mkdtemp(prefix="stackmark-browser-"))
    ours_in, theirs_out = map(_high, os.pipe())
    theirs_in, ours_out = map(_high, os.pipe())
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    options += [
        "--disable-background-networking",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    # The browser reads on descriptor 3 and writes on 4; a shell that could put ours there knows only one digit.
    moved = f"import os, sys; os.dup2({theirs_in}, 3); os.dup2({theirs_out}, 4); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", moved, program, *options]
    process = subprocess.Popen(
        command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        browser = Browser(ours_out, ours_in)
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            browser.call(f"{domain}.enable")
        yield browser
    finally:
        os.close(ours_out)  # it ends when nobody speaks to it any more
        os.close(ours_in)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _high(descriptor: int) -> int:
    """Away from 3 and 4, which are wanted."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
