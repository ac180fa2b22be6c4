"""The report as PDF: Chromium prints the HTML page, where it is installed.

A browser draws the page as people see it, with the same style sheet for paper; a library that makes PDF would be a second layout
to keep. The browser gets a profile of its own that is removed afterwards, no network and a time limit. The page has no script,
and its policy forbids any.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from stackmark.errors import PlaceError, SpecError
from stackmark.show.safe import safe_line

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = (
    "install Chromium (apt-get install chromium; dnf install chromium), or make an HTML file (-o report.html) and print it "
    "from a browser"
)
# A page of a hundred pictures takes some seconds; a machine that is measuring may take ten times as long.
TIME_LIMIT_S = 120.0
OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-dev-shm-usage",  # containers have 64 MiB there
    "--disable-extensions",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-pdf-header-footer",
    # No name is resolved and no proxy is asked: what is printed is one local file.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--no-proxy-server",
)


def find_browser() -> str:
    """Return the path of a browser that prints PDF; a SpecError says what to install where there is none."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise SpecError(f"writing PDF needs a browser, and none of these is on PATH: {', '.join(BROWSERS)}", hint=INSTALL)


def render_pdf(page: str, *, time_limit_s: float = TIME_LIMIT_S) -> bytes:
    """Print an HTML page and return the PDF."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="stackmark-pdf-", ignore_cleanup_errors=True) as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8")
        # Chromium refuses to run as root with its sandbox on.
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [
            browser,
            *OPTIONS,
            *as_root,
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        said = _run(command, folder, time_limit_s)
        if not target.is_file() or not (data := target.read_bytes()).startswith(b"%PDF-"):
            lines = [line for line in said.splitlines() if line.strip()]
            why = f": {safe_line(lines[-1])[:300]}" if lines else ""
            raise PlaceError(
                f"{browser} wrote no PDF{why}",
                hint="a browser from a snap cannot read /tmp: install a package of the distribution, or set TMPDIR to a folder "
                "in your home; or make an HTML file and print it from a browser",
            )
        return data


def _run(command: list[str], folder: str, time_limit_s: float) -> str:
    """Run the browser in a process group of its own, which is ended whole where it takes too long or is interrupted."""
    # HOME too: what a browser keeps outside its profile (certificates, fonts' caches) goes with the folder.
    environment = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired as error:
            raise PlaceError(
                f"{command[0]} did not print the report in {time_limit_s:.0f} s, and was ended",
                hint="try again when the machine is idle, or make an HTML file and print it from a browser",
            ) from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return said.decode("utf-8", "replace")
