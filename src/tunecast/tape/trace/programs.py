"""The programs a traced script may start: tools that only tell something, which libraries ask about the machine.

Each is known by its real path, found before the script begins: what a script puts in front of PATH is another program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

READING_PROGRAMS = frozenset({
    "nvidia-smi", "uname", "lscpu", "lsb_release", "getconf", "id", "whoami", "which", "cat", "ls", "df", "free",
    "file", "grep", "egrep", "head", "tail", "cut", "wc", "tr", "nproc", "echo", "true", "pwd",
})  # fmt: skip
ONLY_WITH: Mapping[str, frozenset[str]] = {
    "hostname": frozenset({"-s", "-f", "-i", "-I", "-d", "-A", "--short", "--fqdn", "--long", "--all-ip-addresses"}),
    "ldconfig": frozenset({"-p", "--print-cache"}),
    "nvcc": frozenset({"--version", "-V", "--help", "-h"}),
}
"""Programs that can do more than tell, with the arguments that do not."""
ONLY_WITH_SOME = frozenset({"ldconfig", "nvcc"})
READING_GIT = frozenset({
    "rev-parse", "log", "status", "describe", "diff", "show", "ls-files", "rev-list", "cat-file", "--version",
    "version", "config --get", "config --list", "branch --show-current", "remote -v", "remote get-url",
})  # fmt: skip
GIT_OPTIONS_WITH_VALUE = frozenset({"-C", "--git-dir", "--work-tree"})
GIT_OUTPUT = ("--output", "--ext-diff", "--textconv", "--exec", "--upload-pack", "--config-env")
"""Options by which git writes a file or starts another program, as does `-c`."""
BESIDE = ("/sbin/ldconfig", "/sbin/ldconfig.real", "/usr/lib/git-core/git", "/usr/libexec/git-core/git")
"""What these programs start in turn, and one that is not in every PATH."""


def named_programs() -> dict[str, str]:
    """Real path by name, of those that are there. What lies beside a relative entry of PATH is nobody's tool."""
    places = [place for place in os.get_exec_path() if os.path.isabs(place)]
    found = {"sh": os.path.realpath("/bin/sh")}
    for name in sorted(READING_PROGRAMS | {*ONLY_WITH, "awk", "git"}):
        path = shutil.which(name, path=os.pathsep.join(places))
        if path is not None:
            found[name] = os.path.realpath(path)
    for path in BESIDE:
        if os.path.exists(path):
            found.setdefault(os.path.basename(path), os.path.realpath(path))
            found[path] = os.path.realpath(path)
    return found


def program_path(program: str, folder: Any = None, environment: Any = None) -> str | None:
    """The real path of what would be started under this name."""
    if os.sep in program:
        return os.path.realpath(os.path.join(os.getcwd(), os.fsdecode(folder) if folder else "", program))
    variables = {os.fsdecode(k): os.fsdecode(v) for k, v in dict(environment).items()} if environment else os.environ
    found = shutil.which(program, path=variables.get("PATH", os.defpath))
    return None if found is None else os.path.realpath(found)


def stages_of(command: str) -> list[list[str]]:
    """The words of `nvidia-smi -q | grep Free`: commands joined by pipes alone; none where a shell would do more."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True  # else `csv,noheader` would be three words
    try:
        tokens = list(lexer)
    except ValueError:
        return []
    unquoted = re.sub(r"'[^']*'", "", command)
    if set(unquoted) & set("$`\\\n;&<>()*?[~{}!") or any(
        set(token) <= set(";&<>()|") and token != "|" for token in tokens
    ):
        return []
    stages: list[list[str]] = [[]]
    for token in tokens:
        if token == "|":
            stages.append([])
        else:
            stages[-1].append(token)
    return stages if all(stages) else []


def only_reads(words: Sequence[str]) -> bool:
    """`git status` does, `git commit` does not; nor does anything that is not known."""
    if not words:
        return False
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name in ONLY_WITH:
        return set(rest) <= ONLY_WITH[name] and (bool(rest) or name not in ONLY_WITH_SOME)
    if name == "awk":  # prints fields; its language can do more
        return not re.search(r"system|getline|[|>]", " ".join(rest)) and "-f" not in rest
    if name != "git":
        return name in READING_PROGRAMS
    if any(word.startswith(GIT_OUTPUT) for word in rest):
        return False
    while rest and rest[0] in GIT_OPTIONS_WITH_VALUE:
        del rest[:2]
    return bool({" ".join(rest[:1]), " ".join(rest[:2])} & READING_GIT)
