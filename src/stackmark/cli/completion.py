"""`stackmark completion`: the scripts for shells, and the table of commands that completing.py answers from.

click has scripts of its own. They split a line at spaces, know nothing of `=` and `:` inside of a word in bash, and import the
command that is being completed (0.3 s for `run`), so these are ours.
"""

import re
from typing import Any, Literal, get_args, get_origin

import click

from stackmark.cli.completing import BREAKS_VARIABLE, LINE_VARIABLE, SHELL_VARIABLE, load_table
from stackmark.cli.help import IMPORTANT, first_sentence
from stackmark.errors import Exit, SpecError

BASH = """\
# stackmark: completion for bash. To load it in every shell:
#   stackmark completion bash > ~/.local/share/bash-completion/completions/stackmark
_stackmark_complete() {
    local kind text about
    COMPREPLY=()
    while IFS=$'\\t' read -r kind text about; do
        case $kind in
            word) COMPREPLY+=("$text") ;;
            part) COMPREPLY+=("$text"); compopt -o nospace ;;
            file) compopt -o default ;;
            folder) compopt -o dirnames ;;
        esac
    done < <(SHELL_VARIABLE=bash LINE_VARIABLE="${COMP_LINE:0:COMP_POINT}" BREAKS_VARIABLE="$COMP_WORDBREAKS" "$1" 2>/dev/null)
}
complete -o nosort -F _stackmark_complete stackmark 2>/dev/null || complete -F _stackmark_complete stackmark
"""
ZSH = """\
#compdef stackmark
# stackmark: completion for zsh. To load it in every shell, write it into a folder of $fpath, before compinit is called:
#   stackmark completion zsh > ~/.zfunc/_stackmark    # and in ~/.zshrc: fpath+=(~/.zfunc); autoload -U compinit; compinit
_stackmark() {
    local kind text about line
    local -a found parts files
    line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    while IFS=$'\\t' read -r kind text about; do
        text=${text//:/\\\\:}
        case $kind in
            word) found+=("$text${about:+:$about}") ;;
            part) parts+=("$text${about:+:$about}") ;;
            file) files=(-f) ;;
            folder) files=(-/) ;;
        esac
    done < <(SHELL_VARIABLE=zsh LINE_VARIABLE="$line" "${words[1]}" 2>/dev/null)
    (( $#found )) && _describe -V stackmark found
    (( $#parts )) && _describe -V stackmark parts -S ''
    if (( $#files )); then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        _path_files $files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _stackmark "$@"
else
    compdef _stackmark stackmark
fi
"""
FISH = """\
# stackmark: completion for fish. To load it in every shell:
#   stackmark completion fish > ~/.config/fish/completions/stackmark.fish
function __stackmark_complete
    set -l line (string join ' ' -- (commandline -cp))
    set -l program (commandline -opc)[1]
    SHELL_VARIABLE=fish LINE_VARIABLE="$line" $program 2>/dev/null | while read -l -d \\t kind text about
        switch $kind
            case word part
                printf '%s\\t%s\\n' $text $about
            case file
                __fish_complete_path (string replace -r '^--[^=]*=' '' -- (commandline -ct))
            case folder
                __fish_complete_directories (string replace -r '^--[^=]*=' '' -- (commandline -ct))
        end
    end
end
complete -c stackmark -f -k -a '(__stackmark_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@click.command(
    "completion",
    epilog="""\b
Examples:
  stackmark completion bash > ~/.local/share/bash-completion/completions/stackmark
  stackmark completion zsh > ~/.zfunc/_stackmark     # a folder of $fpath
  stackmark completion fish > ~/.config/fish/completions/stackmark.fish
""",
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)), metavar="SHELL")
def command(shell: str) -> int:
    """Print a script that lets SHELL (bash, zsh or fish) complete commands, options, workloads, keys of arms, experiments …

    Write it to the file that the examples name, and open a new shell. To try it in this one: eval "$(stackmark completion bash)".
    """
    script = SCRIPTS[shell]
    for name, value in (
        ("SHELL_VARIABLE", SHELL_VARIABLE), ("LINE_VARIABLE", LINE_VARIABLE), ("BREAKS_VARIABLE", BREAKS_VARIABLE),
    ):  # fmt: skip
        script = script.replace(name, value)
    click.echo(script, nl=False)
    load_table()  # so that the first TAB need not wait for it
    return Exit.DONE


# --- the table ----------------------------------------------------------------------------------------------------------

# By what the help calls a value: what is promised there is what is completed.
BY_METAVAR = {
    "PLACE[,KEY=VALUE…]": "on", "WORKLOAD": "workload", "WORKLOAD…": "workload", "EXPERIMENT": "experiment",
    "EXPERIMENT…": "experiment", "ID": "experiment",
    "EXPERIMENT | RUN…": "run", "RUN…": "run", "FILE": "file", "FILE…": "file", "[FILE…]": "file", "PATH|URL": "file",
    "DIR…": "folder", "[TOPIC | COMMAND]": "topic",
}  # fmt: skip
# Where the name says it, and the help only that it is a name or a pattern.
BY_NAME = {
    "workload": "workload", "workloads": "workload", "pattern": "workload", "place": "place", "experiment": "experiment",
    "run": "run", "file": "file", "key": "key", "suite": "suite",
}  # fmt: skip
# `NAME` of these commands is a baseline's; RUNS of this one may be experiments.
BASELINES = ("check", "baseline save", "baseline delete")
FILES = frozenset({"cwd", "data", "checkpoint_dir", "trace_file", "patch", "kubeconfig", "seccomp"})
WORDS = re.compile(r"[a-z0-9][\w-]*(\|[a-z0-9][\w-]*)+")


def make_table() -> dict[str, Any]:
    """Return all that does not depend on the ledger, as plain data."""
    from stackmark.api.options import places_with
    from stackmark.api.suites import shipped_suites
    from stackmark.cli.defaults import top_level_options
    from stackmark.cli.help import topics
    from stackmark.cli.main import stackmark
    from stackmark.workloads.registry import definitions, families

    commands: dict[str, Any] = {}
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        _add(commands, "", stackmark, root)
        keys = list(top_level_options(root))
    places: dict[str, dict[str, list[str]]] = {}
    for name, kinds in places_with().items():
        for place, info in kinds.items():
            places.setdefault(place, {})[name.replace("_", "-")] = _choices(info.annotation)
    return {
        "commands": commands,
        "workloads": {entry.name: entry.title for entry in definitions()},
        "families": {
            typed: {
                name.replace("_", "-"): _choices(info.annotation) for name, info in family.params.model_fields.items()
            }
            for typed, family in families().items()
        },
        "places": places,
        "topics": {name: title for name, (title, _) in topics().items()},
        "keys": keys,
        "suites": {suite.name: suite.title for suite in shipped_suites()},
    }


def _choices(annotation: object) -> list[str]:
    if annotation is bool:
        return ["yes", "no"]
    return [str(one) for one in get_args(annotation)] if get_origin(annotation) is Literal else []


def _add(commands: dict[str, Any], path: str, command: click.Command, root: click.Context) -> None:
    from stackmark.cli.main import our_verbs

    entry: dict[str, Any] = {"below": {}, "options": {}, "names": {}, "arguments": []}
    commands[path] = entry
    for param in command.get_params(click.Context(command, parent=root, info_name=path)):
        if isinstance(param, click.Option) and not param.hidden:
            _add_option(entry, param, path)
        elif isinstance(param, click.Argument):
            entry["arguments"].append({**_takes(param, path), "several": param.nargs != 1})
    if isinstance(command, click.Group):
        for name in command.list_commands(root):
            try:
                inner = command.get_command(root, name)
            except SpecError:  # of a package that cannot be loaded; calling it says why
                continue
            if inner is not None and not inner.hidden:
                entry["below"][name] = our_verbs().get(name, "") if not path else first_sentence(inner.help or "")
                _add(commands, f"{path} {name}".strip(), inner, root)


def _add_option(entry: dict[str, Any], option: click.Option, path: str) -> None:
    name = next((one for one in option.opts if one.startswith("--")), option.opts[0])
    entry["names"].update(dict.fromkeys((*option.opts, *option.secondary_opts), name))
    entry["options"][name] = {
        **_takes(option, path), "about": first_sentence(option.help or ""), "several": option.multiple,
        "off": list(option.secondary_opts[:1]), "important": option.name in IMPORTANT,
    }  # fmt: skip


def _takes(param: click.Parameter, path: str) -> dict[str, Any]:
    """Return the kind of a parameter's value, and its words where it takes one of a few; no kind for a switch."""
    metavar, name = param.metavar or "", param.name or ""
    if isinstance(param, click.Option) and (param.is_flag or param.count or metavar.startswith("[")):
        return {"takes": ""}
    if isinstance(param.type, click.Choice):
        return {"takes": "words", "words": [str(one) for one in param.type.choices]}
    if name == "name" and path in BASELINES:
        return {"takes": "baseline"}
    if path in ("roofline", "delete") and name == "runs":
        return {"takes": "run"}
    if kind := BY_METAVAR.get(metavar):
        # An arm takes parameters of the workload too; with --on they have options of their own.
        return {"takes": "arm" if name == "arms" else kind}
    if WORDS.fullmatch(metavar):
        return {"takes": "words", "words": metavar.split("|")}
    if name in FILES or isinstance(param.type, click.Path):
        return {"takes": "file"}
    return {"takes": BY_NAME.get(name, "text")}
