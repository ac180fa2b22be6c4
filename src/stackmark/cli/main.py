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
from importlib import import_module
from types import FrameType

import click

from stackmark import __version__
from stackmark.cli.saying import say
from stackmark.cli.text_only import take_text_only
from stackmark.errors import SEE_HELP, Exit, HungUp, StackmarkError, Terminated, nearest_names
from stackmark.extensions import announced, built_in, is_announced, load
from stackmark.secrets_masking import forget

VERBS = {
    "run": "Measure a workload on this machine.",
    "compare": "Compare arms: interleaved runs, then a verdict with its interval.",
    "resume": "Go on with an experiment that was killed or interrupted.",
    "noise": "The noise floor of this machine: a workload against itself.",
    "ceilings": "What this machine can do at most: matrix rate, memory, links.",
    "baseline": "Keep measurements under a name, to check against later.",
    "check": "Measure a baseline again and say what changed.",
    "verdict": "Say again what an experiment shows, or runs against runs.",
    "workloads": "List what can be measured.",
    "facts": "Show what this stack is, as seen from here.",
    "experiments": "List stored experiments with their verdicts.",
    "results": "List stored runs.",
    "show": "Show one stored run.",
    "report": "Make a report of an experiment: HTML or Markdown.",
    "plot": "Draw an experiment: SVG or PNG.",
    "roofline": "How far runs are from their machine's limits, and a picture of it.",
    "export": "Write stored runs to a file.",
    "delete": "Delete stored runs.",
    "recover": "Store runs that were saved in files when the ledger failed.",
    "import": "Import logs of other benchmarks as runs.",
    "published": "What others published: search it, add to it.",
    "bundle": "Write the worker as one zip file, which runs in any image with Python.",
    "image": "A recipe for a worker image, and the image.",
    "manifest": "Print what would be applied to a cluster: Job, Pod or CronJob.",
    "cluster": "Is a Kubernetes cluster fit: doctor, check, fault, sweep, clean.",
}
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
  stackmark run train/vgg16 --batch 32 --precision bf16 --device cuda:0 --steps 200 --json
  stackmark compare train/resnet50 --arm host --arm container
  stackmark results --since 7d

Exit codes: 0 done, 2 wrong use, 3 the run failed, 4 the place failed, 5 the ledger failed, 6 a cluster or a check of it
failed, 7 part of a list failed, 8 a verdict that --fail-on names, 129 terminal closed, 130 interrupted, 143 terminated."""


def our_verbs() -> dict[str, str]:
    """Return all verbs of this package with their help."""
    return VERBS | {name: found.summary for name, found in built_in(GROUP).items()}


class Verbs(click.Group):
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
        take_text_only(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            others = announced(GROUP)
            if args[0] not in others:
                known = nearest_names(args[0], [*VERBS, *others])
                raise click.UsageError(f"there is no command {args[0]!r}{known}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables: asking each command for its help would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(our_verbs().items()))
        if others := _others():
            with formatter.section("Commands of other packages"):
                formatter.write_dl(list(others.items()))


def _others() -> dict[str, str]:
    """Return the verbs of other packages, each with the name of its package: its help would have to be imported."""
    if not is_announced(GROUP):
        return {}
    ours = our_verbs()
    return {name: f"From {found.package}." for name, found in announced(GROUP).items() if name not in ours}


@click.group(
    cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, message="stackmark %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; it may stand anywhere.")
def stackmark(debug: bool) -> None:
    """Benchmarks the machine-learning stack: one workload, one worker, every layer."""


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    _open_standard_streams()
    forget()
    _take_signals()
    code = _answer(arguments, debug)
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


def _answer(arguments: list[str], debug: bool) -> int:
    try:
        # Not click's main(): that ends the process with code 1 where the reader of our output is gone.
        with stackmark.make_context("stackmark", list(arguments) or ["--help"], obj=tuple(arguments)) as ctx:
            return int(stackmark.invoke(ctx) or 0)
    except click.exceptions.Exit as error:
        return error.exit_code if arguments else Exit.WRONG_USE
    except click.ClickException as error:
        say(_one_line(error.format_message()), _see_help(arguments))
        return Exit.WRONG_USE
    except StackmarkError as error:
        if debug:
            traceback.print_exc()
        hint = _see_help(arguments) if error.hint == SEE_HELP else error.hint
        say(error.message, hint, error.command)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("interrupted; what was finished is stored")
        return Exit.INTERRUPTED
    except HungUp:
        say("the terminal was closed; what was finished is stored")
        return Exit.HANGUP
    except Terminated:
        say("terminated; what was finished is stored")
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


def _one_line(message: str) -> str:
    return " ".join(message.split())


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
