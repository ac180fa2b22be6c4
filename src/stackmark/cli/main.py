"""Find the verb that was typed, and turn whatever goes wrong into a sentence and an exit code.

The verbs of the core stand in a static table with their help; further ones of ours and those of other packages are announced
in the group `stackmark.commands` (extensions.py), whose objects are click commands. A verb is imported when it is called:
`stackmark --help` answers at once, and a package that cannot be loaded disturbs its own verb only. This is the second of the
two borders where any exception is caught; `--debug` shows the traceback instead.
"""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

import click

from stackmark.cli.help import ShortHelp, prepare
from stackmark.cli.saying import SETTINGS_TAKEN, VERBOSITY, of_click, say
from stackmark.errors import SEE_HELP, Exit, HungUp, StackmarkError, Terminated, nearest_names
from stackmark.extensions import announced, built_in, is_announced, load
from stackmark.secrets_masking import forget

if TYPE_CHECKING:
    from stackmark.cli.defaults import Default

SECTIONS = {
    "Measure": {
        "run": "Measure a workload or your own program on this machine.",
        "noise": "Measure how much identical runs differ on this machine.",
        "ceilings": "Measure the limits of this machine: compute, memory, links.",
        "resume": "Continue an experiment that was interrupted.",
    },
    "Compare": {
        "compare": "Compare host, container, pod or settings, with a verdict.",
        "scale": "Measure whether several ranks are as fast as they should be.",
        "suite": "Measure a matrix of workloads and places as one table.",
        "verdict": "Show the verdict of an experiment, or compare stored runs.",
        "baseline": "Save measurements under a name, to check against later.",
        "check": "Measure a baseline again and report what changed.",
        "published": "Search numbers that others published, or add some.",
    },
    "Look": {
        "workloads": "List what can be measured.",
        "facts": "Show the hardware and software of this machine.",
        "experiments": "List stored experiments with their verdicts.",
        "results": "List stored runs.",
        "show": "Show a stored run or experiment.",
        "report": "Write a report of experiments: HTML, PDF or Markdown.",
        "plot": "Draw an experiment: SVG or PNG.",
        "roofline": "Show how close runs come to the limits of their machine.",
    },
    "Watch": {
        "watch": "Watch an experiment that another process runs.",
        "canary": "Check a baseline for ever, or once before a job.",
        "trend": "Show when a workload became slower, and what changed.",
        "exporter": "Show results and GPUs to Prometheus.",
        "monitor": "Print alert rules, dashboards and manifests for it.",
    },
    "Cluster and images": {
        "cluster": "Diagnose, test and measure a Kubernetes cluster.",
        "manifest": "Print the Kubernetes Job, Pod or CronJob of a measurement.",
        "image": "Print a recipe for a worker image, or build the image.",
    },
    "Stored data": {
        "export": "Write stored runs to a file: CSV, JSON, Parquet.",
        "import": "Import logs of other benchmarks.",
        "delete": "Delete stored runs or experiments.",
        "recover": "Store runs that were saved in files when the ledger failed.",
    },
    "Other": {
        "bundle": "Write the worker as one zip file for images with Python.",
        "config": "Show and change defaults of options.",
        "completion": "Print a script that lets your shell complete commands.",
        "help": "Explain a topic: arms, margin, places, exit-codes …",
    },
}
VERBS = {name: text for section in SECTIONS.values() for name, text in section.items()}
OTHER = "Other"
# Commands that measure nothing, so that nothing is stored when they end.
ONLY_READ = ("exporter", "watch", "web")
# Of these the short help says nothing.
LONG_ONLY = ("Watch", "Stored data", OTHER)
GROUP = "stackmark.commands"
# How a failure of the program, not of what was asked, begins. The tests look for it.
ITSELF_FAILED = "stackmark itself failed"
# Which of the standard streams were a terminal when we began.
_terminals: list[int] = []
# A verb whose name is a word of Python's own has a file of another name.
FILES = {"import": "importing"}
EPILOG = """\b
Examples:
  stackmark run train/resnet50
  stackmark compare train/resnet50 --arm host --arm container
  stackmark run --cmd "python train.py" --metric "images/sec: ([0-9.]+)"

\b
The most important options of a command: stackmark COMMAND -h
Topics (arms, margin, exit-codes …): stackmark help"""


def our_verbs() -> dict[str, str]:
    """Return all verbs of this package with their help."""
    return VERBS | {name: found.summary for name, found in built_in(GROUP).items()}


class Verbs(ShortHelp):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*our_verbs(), *_others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            module = import_module(f"stackmark.cli.{FILES.get(cmd_name, cmd_name.replace('-', '_'))}")
            command: click.Command = module.command
        elif found := announced(GROUP).get(cmd_name):
            command = load(found, click.Command)
        else:
            return None
        prepare(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            others = announced(GROUP)
            if args[0] not in others:
                known = nearest_names(args[0], [*VERBS, *others])
                raise click.UsageError(f"there is no command {args[0]!r}{known}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if name and command:
            from stackmark.cli.defaults import settle  # which `--help` does without

            settle(ctx, (name,), command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables: asking each command for its help would import them all."""
        added = [one for one in built_in(GROUP).values() if one.name not in VERBS]
        for title, verbs in SECTIONS.items():
            here = {one.name: one.summary for one in added if (one.section or OTHER) == title}
            _write_section(formatter, title, verbs | here)
        if others := _others():
            with formatter.section("Commands of other packages"):
                formatter.write_dl(list(others.items()))

    def format_short_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            if title not in LONG_ONLY:
                _write_section(formatter, title, verbs)


def _write_section(formatter: click.HelpFormatter, title: str, verbs: dict[str, str]) -> None:
    width = max(map(len, our_verbs()))  # the same in all sections
    with formatter.section(title):
        formatter.write_dl([(f"{name:<{width}}", text) for name, text in verbs.items()])


def _others() -> dict[str, str]:
    """Return the verbs of other packages, each with the name of its package: its help would have to be imported."""
    if not is_announced(GROUP):
        return {}
    ours = our_verbs()
    return {name: f"From {found.package}." for name, found in announced(GROUP).items() if name not in ours}


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda ctx, _, asked: _version(ctx, asked),
    help="Show the version and exit.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print the answer and errors only: no progress, no notices.")
@click.option("-v", "--verbose", is_flag=True, help="Say more while it works.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error. These three may stand anywhere.")
def stackmark(quiet: bool, verbose: bool, debug: bool) -> None:
    """Benchmark the machine-learning stack, from the chip to Kubernetes."""


prepare(stackmark)

ANYWHERE = {"--debug": 0, "-q": -1, "--quiet": -1, "-v": 1, "--verbose": 1}


def _version(ctx: click.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from stackmark.version import version  # asks git in a checkout, which no other command waits for

        click.echo(f"stackmark {version()}")
        ctx.exit()


def main(argv: list[str] | None = None) -> int:
    typed = sys.argv[1:] if argv is None else argv
    arguments, anywhere = _part_anywhere(typed)
    debug = "--debug" in anywhere
    # Of -q and -v the last one counts.
    verbosity = next((ANYWHERE[word] for word in reversed(anywhere) if ANYWHERE[word]), 0)
    _open_standard_streams()
    forget()
    _take_signals()
    code = _answer(arguments, debug, verbosity)
    try:
        if not sys.stdout.closed:  # as it is where an export could not write its end
            sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer cannot be written, and Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            say(f"standard output cannot be written: {error.strerror}")
            return code or Exit.PLACE_FAILED
    return code


def _ended(how: str, arguments: Sequence[str]) -> str:
    return how if arguments and arguments[0] in ONLY_READ else f"{how}; what was finished is stored"


def _part_anywhere(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part what may stand anywhere from the rest. After `--` nothing is an option."""
    end = typed.index("--") if "--" in typed else len(typed)
    anywhere = [word for word in typed[:end] if word in ANYWHERE]
    return [*(word for word in typed[:end] if word not in ANYWHERE), *typed[end:]], anywhere


def _answer(arguments: list[str], debug: bool, verbosity: int) -> int:
    taken: list[Default] = []  # filled where files or variables set something
    try:
        # Not click's main(): that ends the process with code 1 where the reader of our output is gone.
        with stackmark.make_context("stackmark", list(arguments) or ["--help"], obj=tuple(arguments)) as ctx:
            ctx.meta[VERBOSITY] = verbosity
            ctx.meta[SETTINGS_TAKEN] = taken
            return int(stackmark.invoke(ctx) or 0)
    except click.exceptions.Exit as error:
        return error.exit_code if arguments else Exit.WRONG_USE
    except click.ClickException as error:
        from stackmark.cli.forgiving import explain_wrong_use  # only where something is wrong

        message, hints = explain_wrong_use(error)
        message = of_click(message)
        say(message, _with_source("\n".join([*hints, _see_help(arguments)]), message, taken))
        return Exit.WRONG_USE
    except StackmarkError as error:
        if debug:
            traceback.print_exc()
        hint = _see_help(arguments) if error.hint == SEE_HELP else error.hint
        say(error.message, _with_source(hint, error.message, taken), error.command)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say(_ended("interrupted", arguments))
        return Exit.INTERRUPTED
    except HungUp:
        say(_ended("the terminal was closed", arguments))
        return Exit.HANGUP
    except Terminated:
        say(_ended("terminated", arguments))
        return Exit.TERMINATED
    except BrokenPipeError:
        return Exit.DONE  # whoever read our output (head, less) has seen enough
    except OSError as error:
        if debug:
            traceback.print_exc()
        if error.errno == errno.EIO and _terminal_is_gone():
            return Exit.HANGUP  # a write to the closed terminal came before its signal
        about = f"{error.filename}: " if error.filename else ""
        say(f"the system refused: {about}{error.strerror or error}")
        return Exit.PLACE_FAILED
    except Exception as error:  # noqa: BLE001 - the border
        if debug:
            traceback.print_exc()
        say(
            f"{ITSELF_FAILED}: {type(error).__name__}: {error}",
            "run it again with --debug and report what it shows",
        )
        return Exit.RUN_FAILED


def _open_standard_streams() -> None:
    """Where a standard stream is closed (`2>&-`), the next file that is opened would take its number, and its output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        elif isinstance(stream, io.TextIOWrapper):
            # A terminal that has no ± shows it as an escape; a path may hold bytes that are no text.
            stream.reconfigure(errors="backslashreplace")


def _with_source(hint: str | None, message: str, taken: "Sequence[Default]") -> str | None:
    """Add to the hint where the value comes from, where an error is about an option that was set and not typed."""
    if not taken:
        return hint
    from stackmark.cli.defaults import source_in

    source = source_in(message, taken)
    return "\n".join(filter(None, (hint, source))) or None


def _see_help(arguments: list[str]) -> str:
    """Return the hint that names the command that was typed: `cluster doctor`, not `cluster`."""
    typed = [argument for argument in arguments if not argument.startswith("-")]
    if not typed or not (typed[0] in VERBS or typed[0] in announced(GROUP)):
        return SEE_HELP
    ctx = click.Context(stackmark)
    inner = stackmark.get_command(ctx, typed[0])
    words = (
        typed[:2]
        if isinstance(inner, click.Group) and typed[1:2] and typed[1] in inner.list_commands(ctx)
        else typed[:1]
    )
    return f"see: stackmark {' '.join(words)} --help"


def _take_signals() -> None:
    """SIGTERM and SIGHUP become exceptions, so that what runs is ended and stored. Under nohup SIGHUP stays ignored."""
    signal.signal(signal.SIGTERM, _terminate)
    _terminals[:] = [number for number in (0, 1, 2) if os.isatty(number)]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _hang_up(_number: int, _frame: FrameType | None) -> None:
    # Once is enough: the kernel and the shell both send it. Not SIG_IGN, which programs that we start would inherit.
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    # Each write to a closed terminal is an error, which would come in the middle of ending what runs.
    null = os.open(os.devnull, os.O_RDWR)
    for number in _terminals:
        os.dup2(null, number)
    raise HungUp


def _terminal_is_gone() -> bool:
    return any(not os.isatty(number) for number in _terminals)
