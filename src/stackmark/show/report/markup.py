"""HTML and SVG that cannot be broken by what is written into it.

Markup is a type of its own, and the only way from text to it escapes: mypy refuses a label or a log line that was put into
a page as it is. A template language would escape as well, and would be a dependency for what is forty lines here.
"""

import math
from collections.abc import Iterable
from html import escape
from typing import NewType

from stackmark.show.safe import safe_line

Markup = NewType("Markup", str)
Value = str | float | None

NOTHING = Markup("")


def text(content: str) -> Markup:
    """Text from anywhere. Control characters and signs that turn the direction of writing are shown, not obeyed."""
    return Markup(escape(safe_line(content), quote=True))


def element(name: str, *children: Markup, **attributes: Value) -> Markup:
    """`class_` is class, `stroke_width` is stroke-width; an attribute that is None is left out.

    It is closed by a tag of its own, which both HTML and XML understand.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(children)}</{name}>")


def join(parts: Iterable[Markup], between: Markup = NOTHING) -> Markup:
    return Markup(between.join(parts))


def number(value: float) -> str:
    """A coordinate, to a hundredth of a pixel: more is only a larger file."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no place in a picture")
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short in ("-0", "") else short


def _value(value: str | float) -> str:
    return escape(safe_line(value), quote=True) if isinstance(value, str) else number(value)
