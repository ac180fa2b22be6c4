"""Read YAML from outside: plain values alone. Aliases are refused: with them nine lines can mean a billion values."""

from typing import Any

from stackmark.errors import SpecError


def read_documents(text: str, what: str, *, cut_off: str | None = None) -> list[object]:
    """Return the documents of a text. `what` names it in an error; `cut_off` is the hint where it is not YAML."""
    try:
        import yaml
    except ImportError as error:
        raise SpecError(
            f"{what} is not JSON, and reading YAML needs a package", hint="install it: pip install 'stackmark[k8s]'"
        ) from error

    class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise SpecError(
                    f"{what} has an alias in line {line}; aliases are not supported",
                    hint="write the value out where it is used",
                )
            return super().compose_node(parent, index)

    try:
        return list(yaml.load_all(text, PlainLoader))
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise SpecError(f"{what} is not YAML: {' '.join(str(error).split())[:300]}", hint=cut_off) from error
