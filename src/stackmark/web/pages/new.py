"""A form that writes the command for a new experiment, from the definitions of workloads. It starts nothing."""

import shlex

from stackmark.api.measuring import check_arms
from stackmark.api.options import all_places, choices_of, command_of, extra_of, read_request
from stackmark.errors import SpecError, StackmarkError
from stackmark.model import FieldInfo
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.web.asking import Answer, Ask
from stackmark.web.parts import choice, command, cut, hidden, notice, text_input, trouble
from stackmark.workloads.definition import Family
from stackmark.workloads.registry import definitions, find

VERBS = {"run": "measure it in one place", "compare": "compare places or settings"}
DEFAULT_WORKLOAD = "train/resnet50"
# The parameters that most people set; the rest is folded.
COMMON = ("batch", "precision", "tune", "seconds", "steps", "data", "cmd", "metric", "target", "set")
ARMS = {"arm1": "host", "arm2": "container", "arm3": ""}
DEFAULT = ("", "as the workload chooses")


def new(ask: Ask) -> Answer:
    """Show the form, and the command for what was chosen in it."""
    workload = ask.get("workload") or DEFAULT_WORKLOAD
    verb = ask.one_of("verb", VERBS) or "run"
    try:
        family, _ = find(workload)
    except SpecError:
        family, _ = find(DEFAULT_WORKLOAD)
        workload = DEFAULT_WORKLOAD
    try:
        said, ok = written(ask, family, workload, verb), True
    except StackmarkError as error:
        said, ok = trouble(error.message, error.hint), False
    shown = join([said, notice("Type it in a terminal: this page starts nothing.") if ok else NOTHING])
    body = [
        element("h1", text("A new experiment")),
        _choose(workload, verb),
        element("section", element("h2", text("The command")), element("div", shown, id="command"), aria_live="polite"),
        _form(ask, family, workload, verb),
    ]
    return Answer("New experiment", join(body), here="/new")


def _choose(workload: str, verb: str) -> Markup:
    names = [(one.name, f"{one.name} – {one.title}") for one in definitions() if not one.name.startswith("check/")]
    return element(
        "form", choice("workload", "Workload", names, workload), choice("verb", "Question", list(VERBS.items()), verb),
        element("div", element("button", text("Choose"), type="submit"), class_="buttons"),
        method="get", action="/new", class_="filters",
    )  # fmt: skip


def _form(ask: Ask, family: Family, workload: str, verb: str) -> Markup:
    fields = family.params.model_fields
    common = [name for name in COMMON if name in fields]
    rest = [name for name in fields if name not in common]
    places = all_places()
    if verb == "compare":
        first = [
            text_input(
                "arm1", "First arm", ask.get("arm1") or ARMS["arm1"], hint="a place with options: container,shm=1g"
            ),
            text_input("arm2", "Second arm", ask.get("arm2") or ARMS["arm2"], hint="the same, or host,precision=fp32"),
            text_input("arm3", "Third arm", ask.get("arm3"), hint="may be empty"),
            text_input("blocks", "Blocks", ask.get("blocks"), hint="runs of each arm; 6 if empty", inputmode="numeric"),
            text_input("margin", "Margin", ask.get("margin"), hint="what counts as a difference; 1% if empty"),
        ]
    else:
        first = [
            choice("on", "Place", [(name, name) for name in places], ask.get("on") or "host"),
            text_input("runs", "Runs", ask.get("runs"), hint="fresh processes", inputmode="numeric"),
        ]  # fmt: skip
    ranks = text_input(
        "ranks", "Ranks", ask.get("ranks"), hint="processes, each on its device; 1 if empty", inputmode="numeric"
    )
    more = element(
        "details", element("summary", text(f"{len(rest)} more parameters")),
        element("div", *(_control(ask, name, fields[name]) for name in rest), class_="filters"),
        open="" if any(ask.get(f"p-{name}") for name in rest) else None,
    )  # fmt: skip
    button = element(
        "div", element("button", text("Write the command"), type="submit", class_="main"), class_="buttons"
    )
    return element(
        "form", hidden("workload", workload), hidden("verb", verb),
        element("h2", text("Where and how often")), element("div", *first, ranks, class_="filters"),
        element("h2", text(f"Parameters of {cut(workload, 80)}")),
        element("div", *(_control(ask, name, fields[name]) for name in common), class_="filters"), more, button,
        method="get", action="/new", data_auto="command",
    )  # fmt: skip


def _control(ask: Ask, name: str, info: FieldInfo) -> Markup:
    """Return the control of a parameter: a list where it has choices, else a text; its help is the definition's own."""
    said, hint = name.replace("_", "-"), info.description or ""
    key, value = f"p-{name}", ask.get(f"p-{name}")
    choices = [str(one) for one in choices_of(info)]
    if info.annotation is bool:
        choices = ["yes", "no"]
    if choices:
        extra = [("auto", "auto")] if extra_of(info).get("auto") else []
        return choice(key, said, [DEFAULT, *extra, *((one, one) for one in choices)], value, hint=cut(hint, 200))
    shown = "" if info.is_required() else f" [{info.get_default()}]" if info.get_default() not in (None, "") else ""
    return text_input(key, said, value, hint=cut(hint, 200) + shown)


def written(ask: Ask, family: Family, workload: str, verb: str) -> Markup:
    """Return the command, or raise what is wrong with a value in the words of the command line."""
    options = {name: value for name in family.params.model_fields if (value := ask.get(f"p-{name}"))}
    ranks = _whole(ask, "ranks") or 1
    request, _ = read_request(workload, ranks, options)
    read = {name: request.params[name] for name in options}
    typed: dict[str, object] = {}
    arms: list[str] = []
    if verb == "compare":
        arms = [arm for name, default in ARMS.items() if (arm := ask.get(name) or default)]
        check_arms(arms, workload)
        typed |= {"blocks": _whole(ask, "blocks"), "margin": ask.get("margin") or None}
    else:
        place = ask.get("on")
        if place and place not in all_places():
            raise SpecError(f"the place must be one of {', '.join(all_places())}, got {place!r}")
        typed |= {"on": place if place not in ("", "host") else None, "runs": _whole(ask, "runs")}
    typed["ranks"] = ranks if ranks > 1 else None
    return command(_command(verb, workload, arms, {**typed, **read}), "new-command")


def _command(verb: str, workload: str, arms: list[str], options: dict[str, object]) -> str:
    given = {name: value for name, value in options.items() if isinstance(value, str | int | float)}
    said = command_of([verb], workload, {"arm": arms, **given} if arms else given)
    assert shlex.split(said)[0] == "stackmark"
    return said


def _whole(ask: Ask, name: str) -> int | None:
    value = ask.get(name)
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 10_000:
        raise SpecError(f"{name} must be a whole number from 1 to 10000, got {value!r}")
    return int(value)
