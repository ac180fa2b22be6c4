"""Help: `-h` is one screen, `--help` is whole, `stackmark help TOPIC` explains a word.

Which options stand in the short help is decided here, once for all commands, with a text that fits on one line. A command that
has few options shows them all. The topics are plain text in topics.txt, so that they can be read and corrected as text.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from stackmark.cli.text_only import take_text_only
from stackmark.errors import Exit, SpecError, nearest_names

TOPICS = Path(__file__).with_name("topics.txt")
# A command with more options than this shows only those of the table below.
FEW_OPTIONS = 16
MOST_EXAMPLE_LINES = 7
# A screen of 80 columns.
LINE = 78
# By the names that click has for them, in the order in which they are shown. A text must fit on one line next to the widest
# option; what a value may look like stands in --help.
IMPORTANT = {
    "place": "host, container, pod or slurm; container,shm=1g",
    "arms": "One side: host or container,shm=1g; repeat it",
    "workload": "What trains meanwhile",
    "cmd": "Your own program instead of a workload",
    "metric": "Pattern that finds your program's figure",
    "rank_counts": "How many ranks, 1 among them: 1,2,4",
    "strong": "Fix the batch of all ranks together",
    "stored": "Instead: tabulate stored runs: 'chip=Tesla T4'",
    "runs": "Fresh processes; with more, a narrower interval",
    "blocks": "Runs of each arm; with more, a narrower interval",
    "margin": "The smallest difference that matters: 2%",
    "until_decided": "Stop as soon as there is a verdict",
    "for_": "How long the part is away",
    "yes": "Do it; without, it says what it would do",
    "nodes": "Only nodes with such labels: pool=gpu",
    "node": "Only on this node of the cluster",
    "namespace": "Namespace of the cluster",
    "image": "Run in this image",
    "gpus": "How many GPUs, or none",
    "device": "cpu or cuda:N",
    "seconds": "How long each run measures: 30s",
    "batch": "Samples per step and device",
    "precision": "Arithmetic: fp32, tf32, bf16, fp16",
    "kind": "What to print: job, pod or cronjob",
    "experiments": "Save what was measured already",
    "published": "Compare with a published number: 'H200'",
    "fail_on": "Exit with 8 on such a verdict, for scripts",
    "fail_on_slow": "Exit with 8 where a device is slow",
    "resume": "Continue a sweep that was interrupted",
    "report": "Also write a report: .html or .md",
    "output": "Also draw it: .svg or .png",
    "junit": "Also write JUnit XML",
    "ledger": "Where results are kept",
    "as_json": "Print one JSON object instead",
}
# Important only to a command that knows no other place than a pod.
OF_PODS = ("node", "namespace")


def prepare(command: click.Command) -> None:
    """Give a command, and those below it, what all commands have: `-h`, and arguments that must be UTF-8."""
    take_text_only(command)
    _add_short_help(command)


def _add_short_help(command: click.Command) -> None:
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _add_short_help(inner)
    taken = any("-h" in param.opts for param in command.params)
    if command.add_help_option and not taken:
        text = "Show the most important options and exit."
        command.params.append(
            click.Option(["-h", "short_help"], is_flag=True, is_eager=True, expose_value=False, callback=_print_short,
                         help=text)
        )  # fmt: skip


def _print_short(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(short_help(ctx))
        ctx.exit()


class ShortHelp(click.Group):
    """A group that has a short help of its own."""

    def format_short_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        raise NotImplementedError


def short_help(ctx: click.Context) -> str:
    """Return the help of a command on one screen; of a group that is short anyway, its whole help."""
    command = ctx.command
    if isinstance(command, click.Group) and not isinstance(command, ShortHelp):
        return command.get_help(ctx)
    formatter = click.HelpFormatter(width=LINE)
    command.format_usage(ctx, formatter)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_first_paragraph(command.help or ""))
    if isinstance(command, ShortHelp):
        command.format_short_help(ctx, formatter)
        what = "all commands"
    else:
        _write_options(command, ctx, formatter)
        what = "all options"
    if examples := _examples(command.epilog or ""):
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
    return f"{formatter.getvalue()}\n{what}: {ctx.command_path} --help"


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
    options = [option for option in options if not {"-h", "--help"} & {*option.opts}]
    if len(options) <= FEW_OPTIONS:
        title, rows = "Options", [(_name(option, ctx), first_sentence(option.help or "")) for option in options]
    else:
        named = {option.name or "": option for option in options}
        left_out = OF_PODS if {"place", "arms"} & {*named} else ()
        chosen = {name: text for name, text in IMPORTANT.items() if name in named and name not in left_out}
        title, rows = "Most important options", [(_name(named[name], ctx), text) for name, text in chosen.items()]
    if rows:
        # As click lays them out.
        room = LINE - min(max(len(name) for name, _ in rows), 30) - 4
        with formatter.section(title):
            formatter.write_dl([(name, _cut(text, room)) for name, text in rows])


def _name(option: click.Option, ctx: click.Context) -> str:
    """Return an option with its value in a few characters: of a switch its first name, of many words none."""
    record = option.get_help_record(ctx)
    assert record is not None  # hidden ones are left out
    name = re.sub(r" / --no-\S+", "", record[0])
    return re.sub(r" \[?[\w-]+(\|[\w-]+){2,}\]?$", " WORD", name)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1].rstrip(' ,;:(')}…"


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def first_sentence(text: str) -> str:
    """Return the beginning of an option's help that can stand alone."""
    text = text.partition(" [default: ")[0]
    return re.split(r"\. (?=[A-Z`])|; ", text)[0].rstrip(".")


def first_example(command: click.Command) -> str:
    """Return the first example of a command without its comment; nothing where it has none."""
    lines = (command.epilog or "").partition("Examples:")[2].split("\n")
    return next((line.partition(" #")[0].strip() for line in lines if line.strip().startswith("stackmark")), "")


def _examples(epilog: str) -> list[str]:
    """Return the lines of the examples that there is room for; a long one goes on in the next line."""
    found: list[str] = []
    for line in epilog.partition("Examples:")[2].strip("\n").split("\n\n")[0].splitlines():
        lines = _broken(line.strip())
        if len(found) + len(lines) > MOST_EXAMPLE_LINES:
            break
        found += lines
    return found


def _broken(line: str) -> list[str]:
    """Break a command before an option or a `>`, as a shell takes it; a comment that has no room is left out."""
    if len(line) > LINE:
        line = re.sub(r"\s+# .*$", "", line)
    at = max(line.rfind(mark, 0, LINE - 4) for mark in (" --", " > ")) if len(line) > LINE else -1
    return [line] if at < 0 else [f"{line[:at]} \\", *_broken(f"    {line[at + 1 :]}")]


# --- topics -------------------------------------------------------------------------------------------------------------


@cache
def topics() -> dict[str, tuple[str, str]]:
    """Return each topic by its name: the line that says what it is about, and its text."""
    parts = re.split(r"(?m)^== (\S+): (.+)$\n", TOPICS.read_text(encoding="utf-8"))[1:]
    return {name: (title, text.strip("\n")) for name, title, text in zip(*[iter(parts)] * 3, strict=True)}


def _listed() -> Iterator[str]:
    width = max(map(len, topics()))
    yield "Topics, each with: stackmark help TOPIC"
    yield ""
    yield from (f"  {name:<{width}}  {title}" for name, (title, _) in topics().items())
    yield ""
    yield "Commands: stackmark --help lists them; stackmark help run shows the help of one."


@click.command(
    "help",
    epilog="""\b
Examples:
  stackmark help
  stackmark help margin
  stackmark help cluster doctor
""",
)
@click.argument("words", nargs=-1, metavar="[TOPIC | COMMAND]")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Explain a TOPIC in a few lines with examples, or show the help of a COMMAND. Alone it lists the topics."""
    if not words:
        click.echo("\n".join(_listed()))
        return Exit.DONE
    # A word that is both is explained as a topic; `stackmark WORD --help` has the other.
    if len(words) == 1 and (found := topics().get(words[0].lower())):
        click.echo(f"{words[0].lower()}: {found[0]}\n\n{found[1]}")
        return Exit.DONE
    click.echo(_help_of(ctx, words))
    return Exit.DONE


def _help_of(ctx: click.Context, words: tuple[str, ...]) -> str:
    """Return the whole help of a command, or raise an error that names what is like it."""
    assert ctx.parent is not None
    here = ctx.parent
    for number, word in enumerate(words):
        group = here.command
        names = group.list_commands(here) if isinstance(group, click.Group) else []
        inner = group.get_command(here, word) if isinstance(group, click.Group) and word in names else None
        if inner is None:
            known = nearest_names(word, [*names, *([] if number else topics())])
            what = f"topic or command {word!r}" if not number else f"command '{' '.join(words[: number + 1])}'"
            raise SpecError(f"there is no {what}{known}", hint="list the topics with: stackmark help")
        here = click.Context(inner, parent=here, info_name=word)
    return here.command.get_help(here)
