"""Write manifests as YAML; without a YAML package as JSON, which every reader of YAML reads too.

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

# Several lines of a program, none of which begins the text with a blank or ends with one: they stay readable.
_SCRIPT = re.compile(r"(?! )[ -~]*[!-~](\n[ -~]*[!-~])+")
# A file in base64 is hundreds of kilobytes, which editors and `git diff` do not show on one line.
LINE, LONGEST = 120, 1000
_BASE64 = re.compile(r"[A-Za-z0-9+/]+=*")
_LONG = re.compile(rf'^(?P<indent> *)(?P<key>[^\s:]+): "(?P<text>[A-Za-z0-9+/=]{{{LONGEST},}})"$', re.MULTILINE)


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
    return _LONG.sub(_wrapped, written.removesuffix("...\n"))


def _wrapped(found: re.Match[str]) -> str:
    """Break a long line so that readers put it together again without a blank."""
    text = found["text"]
    indent = "\n" + " " * (len(found["indent"]) + 2)
    lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
    return f'{found["indent"]}{found["key"]}: "\\{indent}' + f"\\{indent}".join(lines) + '"'


def _text(dumper: Any, text: str) -> Any:
    style = '"'
    if len(text) > LONGEST and _BASE64.fullmatch(text):
        pass  # it is wrapped, which needs quotes
    elif _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = ""
    elif _SCRIPT.fullmatch(text):
        style = "|"
    elif text.isprintable() and not {'"', "\\"}.isdisjoint(text):
        style = "'"  # JSON in a variable, mostly: it stays readable
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
