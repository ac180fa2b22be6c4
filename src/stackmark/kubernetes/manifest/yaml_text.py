"""Manifests as YAML; where no YAML package is installed as JSON, which every reader of YAML reads too.

PyYAML leaves texts without quotes that Kubernetes' reader, which is another one, takes for something else: `y` for a boolean,
`1e3` for a number. So what may stand without quotes is decided here.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Words that YAML 1.1, which Kubernetes' reader still follows, takes for a boolean or for nothing.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# Begins with a letter, so it is not a number or a date; no blank stands next to a colon or a #.
_PLAIN = re.compile(
    r"[A-Za-z/][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+=-]+)*( [A-Za-z0-9_./@+=-]+(:[A-Za-z0-9_./@+=-]+)*)*"
)


def documents(items: Iterable[Mapping[str, object]], remarks: Sequence[str] = ()) -> str:
    """Write several objects in one text, with remarks before them."""
    # A reader refuses a control character in a comment too.
    lines = (line for remark in remarks for line in remark.splitlines())
    comments = "".join(f"# {line if line.isprintable() else ascii(line)}\n" for line in lines)
    return comments + "---\n".join(map(document, items))


def document(data: object) -> str:
    as_json = json.dumps(data, indent=2, allow_nan=False)
    try:
        import yaml
    except ImportError:
        return f"{as_json}\n"

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            """Write what stands in two places twice."""
            return True

    Dumper.add_representer(str, _text)
    # Read back, so that all is plain data.
    written: str = yaml.dump(json.loads(as_json), Dumper=Dumper, sort_keys=False, width=float("inf"))
    return written.removesuffix("...\n")


def _text(dumper: Any, text: str) -> Any:
    style = '"'
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = ""
    elif text.isprintable() and not {'"', "\\"}.isdisjoint(text):
        style = "'"  # JSON in a variable, mostly: it stays readable
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
