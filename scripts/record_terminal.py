"""Record a real command in a real terminal as one animated SVG, for the README.

    python scripts/record_terminal.py -o docs/pictures/compare.svg -- stackmark compare …

tmux is the terminal: the command runs in a window of 80 × 24 and the screen is read every quarter of a second. Rows that stay
the same are drawn once. Waiting is cut: a screen stays for at most --hold seconds, and the picture's title says what the
command really took. Viewers who ask for less motion see the last screen.
"""

import argparse
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.color import ColorType
from rich.console import Console
from rich.style import Style
from rich.text import Text

# A character cell and the type size, in pixels: monospaced fonts are about 0.6 of their size wide.
CELL_WIDTH, CELL_HEIGHT, TYPE_SIZE, BORDER = 8.4, 18, 14, 14
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
# The sixteen colours of a terminal, readable on the background.
PALETTE = (
    "#16181d", "#f0716b", "#7fc97a", "#e2b54a", "#6ba8f0", "#c792ea", "#5fc9c0", "#d7dae0",
    "#8a909c", "#ff8f88", "#9be495", "#ffd479", "#8ec2ff", "#ddb3ff", "#86e8df", "#ffffff",
)  # fmt: skip
READ_EVERY_S = 0.25
WORDS = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True)
class Screen:
    at_s: float
    rows: tuple[Text, ...]


@dataclass(frozen=True)
class Span:
    """One row's content from one moment to another."""

    row: int
    content: Text
    begin_s: float
    end_s: float


def record(command: Sequence[str], columns: int, lines: int, limit_s: float) -> tuple[list[Screen], float]:
    """Run the command in tmux and return the screens that differ, and how long the command took."""
    with tempfile.TemporaryDirectory(prefix="stackmark-record-") as folder:
        socket, ended = Path(folder) / "tmux", Path(folder) / "ended"
        tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        typed = shlex.join(command)
        script = f"printf '%s\\n' {shlex.quote('$ ' + typed)}; {typed}; touch {shlex.quote(str(ended))}; sleep 60"
        size = ["-x", str(columns), "-y", str(lines)]
        subprocess.run(
            [*tmux, "new-session", "-d", *size, "env", "TERM=screen-256color", "sh", "-c", script], check=True
        )
        subprocess.run([*tmux, "set-option", "-g", "status", "off"], check=True)
        begin, screens = time.monotonic(), list[Screen]()
        try:
            while time.monotonic() - begin < limit_s:
                over = ended.exists()
                read = subprocess.run(
                    [*tmux, "capture-pane", "-e", "-p"], stdout=subprocess.PIPE, text=True, check=True
                )
                rows = tuple(AnsiDecoder().decode(read.stdout))[:lines]
                if not screens or rows != screens[-1].rows:
                    screens.append(Screen(time.monotonic() - begin, rows))
                if over:
                    return screens, time.monotonic() - begin
                time.sleep(READ_EVERY_S)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
    raise SystemExit(f"the command did not end within {limit_s:.0f} s: --limit")


def without_waiting(screens: Sequence[Screen], hold_s: float) -> list[Screen]:
    """Return the screens at the times of the picture, where none stays longer than `hold_s`."""
    at_s, shown = 0.0, [Screen(0.0, screens[0].rows)]
    for before, screen in pairwise(screens):
        at_s += min(screen.at_s - before.at_s, hold_s)
        shown.append(Screen(at_s, screen.rows))
    return shown


def spans(screens: Sequence[Screen], end_s: float) -> list[Span]:
    """Return each row's content once for as long as it stays."""
    found: list[Span] = []
    for row in range(max(len(screen.rows) for screen in screens)):
        begin_s, content = 0.0, Text()
        for screen in [*screens, Screen(end_s, ())]:
            now = screen.rows[row] if row < len(screen.rows) else Text()
            if now != content or screen.at_s == end_s:
                if content.plain.strip():
                    found.append(Span(row, content, begin_s, screen.at_s))
                begin_s, content = screen.at_s, now
    return found


def colour(style: Style) -> str:
    """Return the colour of text as an SVG attribute."""
    shade = style.color
    if shade is None or shade.type is ColorType.DEFAULT:
        fill = FOREGROUND
    elif shade.number is not None and shade.number < len(PALETTE):
        fill = PALETTE[shade.number]
    else:
        fill = shade.get_truecolor().hex
    return fill


def draw_row(row: int, content: Text) -> str:
    """Draw one row: a text element for each piece of one style, at its own column."""
    drawn, column = "", 0
    y = BORDER + (row + 0.75) * CELL_HEIGHT
    for segment in content.render(_console()):
        plain, style = segment.text.rstrip("\n"), segment.style or Style()
        weight = ' font-weight="bold"' if style.bold else ""
        faint = ' opacity="0.7"' if style.dim else ""
        # Viewers fold spaces: words with more than one space between them are drawn apart.
        for words in WORDS.finditer(plain):
            x, width = BORDER + (column + words.start()) * CELL_WIDTH, len(words[0]) * CELL_WIDTH
            drawn += (
                f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" fill="{colour(style)}"{weight}{faint}>'
                f"{escape(words[0])}</text>"
            )
        column += len(plain)
    return drawn


def _console() -> Console:
    return Console(width=200, color_system="truecolor", force_terminal=True)


def svg(screens: Sequence[Screen], columns: int, lines: int, title: str, last_s: float) -> str:
    """Draw the animation. The last screen stays for `last_s`, then it begins again."""
    total_s = screens[-1].at_s + last_s
    rules, rows = [], []
    for number, span in enumerate(spans(screens, total_s)):
        begin, end = (100 * at_s / total_s for at_s in (span.begin_s, span.end_s))
        stays = span.end_s >= total_s
        hidden, shown = "{visibility:hidden}", "{visibility:visible}"
        steps = f"0%{hidden}" if begin > 0 else ""
        steps += f"{begin:.2f}%{shown}" + ("" if stays else f"{end:.2f}%{hidden}")
        steps += f"100%{shown if stays else hidden}"
        rules.append(f"@keyframes k{number}{{{steps}}}#s{number}{{animation-name:k{number}}}")
        last = "" if stays else ' class="gone"'
        rows.append(f'<g id="s{number}"{last}>{draw_row(span.row, span.content)}</g>')
    width, height = columns * CELL_WIDTH + 2 * BORDER, lines * CELL_HEIGHT + 2 * BORDER
    style = (
        f"g{{animation-duration:{total_s:.2f}s;animation-iteration-count:infinite;animation-timing-function:step-end}}"
        + "".join(rules)
        + "@media (prefers-reduced-motion:reduce){g{animation:none!important}.gone{visibility:hidden}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<g style="animation:none" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" '
        f'font-size="{TYPE_SIZE}">{"".join(rows)}</g></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="file", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--lines", type=int, default=24)
    parser.add_argument("--hold", type=float, default=0.6, help="the longest time in seconds that a screen stays")
    parser.add_argument("--last", type=float, default=6.0, help="how long the last screen stays, in seconds")
    parser.add_argument("--limit", type=float, default=900.0, help="the longest that the command may take, in seconds")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    screens, took_s = record(asked.command, asked.columns, asked.lines, asked.limit)
    shown = without_waiting(screens, asked.hold)
    title = f"{shlex.join(asked.command)}: took {took_s:.0f} s, waiting is cut"
    asked.file.write_text(svg(shown, asked.columns, asked.lines, title, asked.last))
    print(f"{asked.file}: {len(screens)} screens, {asked.file.stat().st_size:,} bytes, {took_s:.0f} s")


if __name__ == "__main__":
    main()
