"""`tunecast completion SHELL`: a script that completes commands, flags, their values, models and cards.

It is made from the parsers, and asks nobody when a key is pressed: what can be chosen stands in it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from tunecast.cli.arguments import Parser
from tunecast.cli.main import COMMANDS
from tunecast.hardware.catalog import gpus
from tunecast.job.flags import PREFIX, job_flags
from tunecast.job.job import all_knobs, sections
from tunecast.job.registry import bundled_names
from tunecast.prediction.modelled import ENGINES
from tunecast.records import NamedTuple

USAGE = "tunecast completion bash|zsh|fish"
DESCRIPTION = "Prints a script that completes commands, flags and their values, models and cards."
EPILOG = """\
examples:
  tunecast completion bash > ~/.local/share/bash-completion/completions/tunecast
  tunecast completion zsh > ~/.zfunc/_tunecast          with fpath=(~/.zfunc $fpath) before compinit in ~/.zshrc
  tunecast completion fish > ~/.config/fish/completions/tunecast.fish
  source <(tunecast completion bash)                    only in this shell
"""
JOBS = ("plan", "predict", "fit", "largest", "compare", "explain-oom")
"""Commands whose words are jobs: files, or models."""


class CompletedFlag(NamedTuple):
    spelled: str
    help: str
    takes: str
    """What follows it: nothing, a word, a file."""
    words: tuple[str, ...] = ()
    """What the word may be, where that is known."""


def parser() -> Parser:
    made = Parser("completion", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS))
    return made


def run(argv: Sequence[str]) -> int:
    print(SCRIPTS[parser().read(argv).shell](), end="")
    return 0


def flags_of(command: str) -> list[CompletedFlag]:
    """Every flag of a command, as it may be typed."""
    made: argparse.ArgumentParser = import_module(COMMANDS[command].module).parser()
    return [
        CompletedFlag(spelled, action.help or "", *_takes(spelled, action))
        for action in made._actions
        for spelled in action.option_strings
    ]


def _takes(spelled: str, action: argparse.Action) -> tuple[str, tuple[str, ...]]:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "nothing", ()
    if action.metavar in ("FILE", "PATH"):
        return "file", ()
    if spelled == "--gpu":
        return "word", tuple(gpus())
    if action.dest == PREFIX or spelled == "--to":
        return "word", tuple(f"{field}=" for field in (*all_knobs(), *sections()))
    if spelled == "--engine":
        return "word", tuple(ENGINES)
    chosen = {PREFIX + flag.field: flag.choices for flag in job_flags()}.get(action.dest, ())
    return "word", tuple(action.choices or chosen)


def _by_flag() -> dict[str, CompletedFlag]:
    """Flags that take something. One that takes other words elsewhere is left to the file names."""
    known: dict[str, CompletedFlag] = {}
    for command in COMMANDS:
        for flag in flags_of(command):
            if flag.takes == "nothing":
                continue
            same = known.setdefault(flag.spelled, flag)
            if same.words != flag.words:
                known[flag.spelled] = flag._replace(words=())
    return known


def _first_words(command: str) -> tuple[str, ...]:
    """What stands for a command's own words."""
    if command in (*JOBS, "models"):
        return tuple(sorted(bundled_names()))
    if command in ("gpus", "offers"):
        return tuple(gpus())
    return tuple(SCRIPTS) if command == "completion" else ()


def _cases(offer: Callable[[Sequence[str]], str], files: str) -> str:
    """`--method) … ;;` of every flag that takes something, flags that take the same together."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for spelled, flag in _by_flag().items():
        alike.setdefault((flag.takes, flag.words), []).append(spelled)
    lines = []
    for (takes, words), flags in alike.items():
        then = files if takes == "file" else offer(words) if words else ":"
        lines.append(f"        {'|'.join(flags)}) {then} ;;\n")
    return "".join(lines)


def bash() -> str:
    def offer(words: Sequence[str]) -> str:
        return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current"))'

    commands = "".join(
        f"                {name}) flags='{' '.join(flag.spelled for flag in flags_of(name))}'"
        f" own='{' '.join(_first_words(name))}' ;;\n"
        for name in COMMANDS
    )
    return f"""\
# bash completion of tunecast, made by: tunecast completion bash
_tunecast() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} flags own
    COMPREPLY=()
    if [[ $before == "=" ]]; then before=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
    if [[ $current == "=" ]]; then current=; fi
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} help --help --version" -- "$current"))
        return
    fi
    case $before in
{_cases(offer, 'COMPREPLY=($(compgen -f -- "$current"))')}        *)
            case ${{COMP_WORDS[1]}} in
{commands}                help) own='{" ".join(COMMANDS)}' ;;
            esac
            if [[ $current == -* ]]; then
                COMPREPLY=($(compgen -W "$flags" -- "$current"))
            else
                COMPREPLY=($(compgen -W "$own" -- "$current") $(compgen -f -- "$current"))
            fi ;;
    esac
    if [[ ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace 2> /dev/null; fi
}}
complete -o filenames -F _tunecast tunecast
"""


def zsh() -> str:
    def offer(words: Sequence[str]) -> str:
        stays = " -S ''" if words[0].endswith("=") else ""
        return f"compadd{stays} -- {' '.join(words)}"

    commands = "".join(
        f"                {name}) flags=({' '.join(flag.spelled for flag in flags_of(name))})"
        f" own=({' '.join(_first_words(name))}) ;;\n"
        for name in COMMANDS
    )
    return f"""\
#compdef tunecast
# zsh completion of tunecast, made by: tunecast completion zsh
_tunecast() {{
    local before=${{words[CURRENT - 1]}}
    local -a flags own
    if ((CURRENT == 2)); then
        compadd -- {" ".join(COMMANDS)} help
        return
    fi
    case $before in
{_cases(offer, "_files")}        *)
            case ${{words[2]}} in
{commands}                help) own=({" ".join(COMMANDS)}) ;;
            esac
            if [[ $PREFIX == -* ]]; then
                compadd -- $flags
            else
                compadd -- $own
                _files
            fi ;;
    esac
}}
if [[ $funcstack[1] == _tunecast ]]; then _tunecast "$@"; else compdef _tunecast tunecast; fi
"""


def fish() -> str:
    lines = ["# fish completion of tunecast, made by: tunecast completion fish"]
    for name, command in COMMANDS.items():
        lines.append(f"complete -c tunecast -n __fish_use_subcommand -f -a {name} -d {shlex.quote(command.summary)}")
    shared: dict[CompletedFlag, list[str]] = {}
    for name in COMMANDS:
        seen = f"'__fish_seen_subcommand_from {name}'"
        if own := _first_words(name):
            lines.append(f"complete -c tunecast -n {seen} -a {shlex.quote(' '.join(own))}")
        for flag in flags_of(name):
            shared.setdefault(flag, []).append(name)
    for flag, names in shared.items():
        if not flag.spelled.startswith("--"):
            continue
        how = {"nothing": "", "file": " -r -F", "word": f" -x -a {shlex.quote(' '.join(flag.words))}"}[flag.takes]
        seen = f"'__fish_seen_subcommand_from {' '.join(names)}'"
        about = shlex.quote(flag.help.partition(";")[0].replace("%%", "%"))
        lines.append(f"complete -c tunecast -n {seen} -l {flag.spelled[2:]}{how} -d {about}")
    return "\n".join(lines) + "\n"


SCRIPTS: Mapping[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
