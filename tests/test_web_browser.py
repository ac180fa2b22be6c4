"""The pages of `stackmark web` as a person meets them: in Chromium, wide and narrow, light and dark, while a run goes on."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recorded
from browser import PACKAGE, Browser, find_browser, running_browser
from leaving_out import leave_out
from ledger_runs import our_path
from stackmark.api.baselines import save_baseline
from stackmark.ledger.store import Ledger
from test_report_browser import CONTRAST, OUTSIDE
from web_serving import TOKEN, Client, serving

LISTS = ("/", "/runs?workload=resnet", "/machines", "/trends", "/published", "/baselines/before", "/new?verb=compare")
# Not a second long, but seen: the page must have time to show it.
PROGRAM = "import time\nfor i in range(12): print('rate:', 100 + i, flush=True); time.sleep(0.25)\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        leave_out(f"no browser is installed (apt-get install {PACKAGE})")
    with running_browser(program) as found:
        yield found


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "ledger.sqlite3"
    with Ledger.open(str(path)) as book:
        recorded.load(book, "h200_host_container")
        alone = recorded.load(book, "cpu_tf_cnn")
        save_baseline("before", experiments=[alone], ledger=book)
    return path


@pytest.fixture(scope="module")
def site(ledger: Path) -> Iterator[Client]:
    with serving(ledger) as client:
        yield client


def assert_well(browser: Browser, site: Client) -> None:
    """No complaint, no request to anybody else, and nothing that a reader would have to look for sideways."""
    assert browser.complaints() == []
    # The sign in a field for a date is a picture of the browser's own.
    others = [one for one in browser.requests() if not one.startswith((f"{site.address}/", "data:"))]
    assert others == []


@pytest.mark.parametrize("where", [*LISTS, "/experiments/last", "/runs/last", "/experiments/x-nothing"])
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)], ids=["wide dark", "phone light"])
def test_a_page_fits_is_legible_and_asks_nobody_else(
    browser: Browser, site: Client, where: str, width: int, dark: bool
) -> None:
    browser.visit(f"{site.address}{where}", width=width, dark=dark)
    if "nothing" in where:
        assert browser.value("document.querySelector('[role=alert]').textContent").startswith("the ledger")
        return  # a page that is missing is a complaint of the browser's own
    assert browser.value(OUTSIDE) == []
    assert browser.value(CONTRAST) == []
    assert_well(browser, site)


def test_a_filter_is_set_with_the_keyboard_and_a_row_opens(browser: Browser, site: Client) -> None:
    browser.visit(f"{site.address}/")
    assert browser.value("document.querySelectorAll('#list tbody tr').length") == 2
    browser.value("document.querySelector('.filter-box summary').click()")
    browser.value("document.getElementById('in-workload').focus()")
    browser.call("Input.insertText", text="lenet")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")
    browser.until(
        "location.search.includes('workload=lenet') && document.querySelectorAll('#list tbody tr').length === 1"
    )
    browser.value("document.querySelector('#list tbody a').click()")
    browser.until("location.pathname.startsWith('/experiments/') && document.querySelector('#report h1') !== null")
    assert_well(browser, site)


def test_a_screen_reader_finds_its_way(browser: Browser, site: Client) -> None:
    browser.visit(f"{site.address}/?workload=train")
    browser.call("Accessibility.enable")
    nodes = [one for one in browser.call("Accessibility.getFullAXTree")["nodes"] if not one.get("ignored")]
    roles = [node.get("role", {}).get("value") for node in nodes]
    for landmark in (
        "banner",
        "navigation",
        "main",
        "contentinfo",
        "search",
        "table",
        "columnheader",
        "rowheader",
        "status",
    ):
        assert landmark in roles
    for node in nodes:
        if node["role"]["value"] in ("textbox", "searchbox", "combobox", "button", "link", "Date"):
            assert node["name"]["value"].strip(), node
    browser.visit(f"{site.address}/")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
    assert browser.value("document.activeElement.className") == "skip"


def test_colours_are_chosen_with_a_button_and_stay(browser: Browser, site: Client) -> None:
    ask = "getComputedStyle(document.body).backgroundColor"
    browser.visit(f"{site.address}/", dark=True)
    dark = browser.value(ask)
    browser.value("document.getElementById('theme').click()")
    light = browser.value(ask)
    assert light == "rgb(255, 255, 255)"
    assert light != dark
    browser.visit(f"{site.address}/runs", dark=True)
    assert browser.value(ask) == light
    for chosen in ("dark", "auto"):
        browser.value("document.getElementById('theme').click()")
        assert browser.value("document.getElementById('theme').textContent") == f"Colours: {chosen}"
        assert browser.value(ask) == dark


def test_the_form_follows_what_is_typed_into_it(browser: Browser, site: Client) -> None:
    browser.visit(f"{site.address}/new?workload=train/resnet50")
    browser.value("document.getElementById('in-p-batch').focus()")
    browser.call("Input.insertText", text="64")
    browser.until("document.getElementById('new-command')?.textContent === 'stackmark run train/resnet50 --batch 64'")
    browser.value("document.querySelector('[data-copy]').click()")
    browser.until("/Copied|Selected/.test(document.querySelector('[data-copy]').textContent)")
    assert_well(browser, site)


def test_a_run_appears_in_the_list_and_its_page_follows_it_to_the_end(
    browser: Browser, site: Client, ledger: Path, tmp_path: Path
) -> None:
    browser.visit(f"{site.address}/")
    before = browser.value("document.querySelectorAll('#list tbody tr').length")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        "run",
        "--cmd",
        f"{sys.executable} program.py",
        "--metric",
        "rate: ([0-9.]+)",
        "--unit",
        "images/s",
        "--runs",
        "2",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "stackmark", "-q", *command, "--ledger", str(ledger)],
        cwd=tmp_path, env=our_path(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        row = "document.querySelector('#list tbody tr')"
        browser.until(f"document.querySelectorAll('#list tbody tr').length === {before + 1}")
        browser.until(f"{row}.textContent.includes('running')")
        browser.value(f"{row}.querySelector('a').click()")
        browser.until("document.querySelector('.live h2')?.textContent === 'Running now'")
        browser.until("document.getElementById('live-lines').textContent.includes('Run 1 of 2')")
        browser.until("document.getElementById('live-lines').textContent.includes('1 of 2 runs done')")
        browser.until("document.querySelector('.live h2').textContent === 'It has ended'")
        browser.until("document.querySelectorAll('#runs-table .state-sign.same').length === 2")
        browser.until("document.querySelector('#report #verdict')?.textContent.includes('images/s')")
        said = run.communicate(timeout=120)[0]
        assert run.returncode == 0, said
    assert_well(browser, site)


def test_text_of_a_ledger_runs_no_script(browser: Browser, ledger: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(ledger, tmp_path / "hostile.sqlite3"))
    hostile = "\"'></title></pre><script>alert(1)</script><img src=//evil.example/x onerror=alert(1)>"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET chip = ?, place = ?, framework = ?, failure_message = ?", [hostile] * 4)
        connection.execute("UPDATE experiments SET command = ?, note = ?", [hostile] * 2)
    connection.close()
    with serving(path) as client:
        for where in ("/", "/runs", "/machines", "/trends", "/experiments/last", "/runs/last"):
            browser.visit(f"{client.address}{where}", width=390)
            assert browser.value("document.querySelectorAll('img, script:not([src])').length") == 0
            assert browser.value(OUTSIDE) == []
            assert_well(browser, client)


def test_with_a_token_a_person_logs_in_and_deletes_an_experiment(
    browser: Browser, ledger: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(ledger, tmp_path / "own.sqlite3"))
    with Ledger.open(str(path)) as book:
        newest = book.experiments()[0].experiment.id
    with serving(path, token=TOKEN, actions=True) as client:
        browser.visit(f"{client.address}/experiments/{newest}")
        assert browser.value("location.pathname") == "/login"
        browser.value("document.getElementById('in-token').focus()")
        browser.call("Input.insertText", text=TOKEN)
        browser.value("document.querySelector('form.login button').click()")
        browser.until("location.pathname === '/' && document.getElementById('list') !== null")
        browser.visit(f"{client.address}/experiments/{newest}")
        browser.value("document.getElementById('in-sure').focus()")
        browser.call("Input.insertText", text=newest)
        browser.value("document.querySelector('button.danger').click()")
        browser.until("location.pathname === '/' && document.getElementById('list') !== null")
        assert newest not in browser.value("document.getElementById('list').innerHTML")
        assert_well(browser, client)
