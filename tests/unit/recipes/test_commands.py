"""The commands of shell scripts, read and never run."""

from __future__ import annotations

import pytest

from tunecast.errors import UsageError
from tunecast.job.recipes.commands import commands_of
from tunecast.job.recipes.words import Word, assignments_of, flags_of


def words(text: str, **variables: str) -> list[list[str]]:
    return [[str(word) for word in command.words] for command in commands_of(text, variables)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("swift sft \\\n  --model a \\\n  --x 'b c' # not this\n", [["swift", "sft", "--model", "a", "--x", "b c"]]),
        ("# swift sft \\\ntune run x", [["tune", "run", "x"]]),
        ("a 1 && b 2 || c; d | e & f", [["a", "1"], ["b", "2"], ["c"], ["d"], ["e"], ["f"]]),
        ("n=2\na --gpus $n --per-node ${n} '$n' \"$n\"", [["a", "--gpus", "2", "--per-node", "2", "$n", "2"]]),
        ("a ${LR:-1e-4} ${LR-2} ${LR:+no}$", [["a", "1e-4", "2", "$"]]),
        ("a ${A:-${B:-c}}", [["a", "c"]]),
        ("a ${A:=1} $A", [["a", "1", "1"]]),
        ('FLAGS="--a 1 \\\n --b 2"\nx $FLAGS "$FLAGS"', [["x", "--a", "1", "--b", "2", "--a 1  --b 2"]]),
        ('A=(--a 1 # no\n --b "2 3")\nA+=(--c)\nx "${A[@]}"', [["x", "--a", "1", "--b", "2 3", "--c"]]),
        ("n=4\nx $(expr 16 / $n) $((32 / n * 2)) $(( 7 % ${n} ))", [["x", "4", "16", "3"]]),
        ("x $WORLD_SIZE --n=$(nvidia-smi | wc -l)", [["x", "$WORLD_SIZE", "--n=$(nvidia-smi | wc -l)"]]),
        ("x `nproc` $1", [["x", "`nproc`", "$1"]]),
        ('x "$@" $* ${@}', [["x"]]),
        ("cat <<EOF > f\nswift sft\nEOF\nx", [["cat"], ["x"]]),
        ("cat <<-'END'\n\tswift sft $(\n\tEND\nx", [["cat"], ["x"]]),
        ("x --a > log 2>&1 < in &>> all", [["x", "--a"]]),
        ("if [ -d a ]; then x 1; else x 2; fi", [["[", "-d", "a", "]"], ["x", "1"], ["x", "2"]]),
        ("for lr in 1e-4 2e-4; do x $lr; done", [["x", "1e-4"]]),
        ("while true; do x; done", [["true"], ["x"]]),
        ("f() {\n  x $1\n}\nf a", [["f"], ["x", "$1"], ["f", "a"]]),
        ('srun -l bash -c "torchrun \\$CARDS x; y"', [["srun", "-l", "torchrun", "8", "x"], ["srun", "-l", "y"]]),
        ("C='x --a 1'\neval $C\neval \"$C\"", [["x", "--a", "1"], ["x", "--a", "1"]]),
        ("C='x --a 1'\n$C --b", [["x", "--a", "1", "--b"]]),
        ("x \\\r\n  --a\r\n", [["x", "--a"]]),
    ],
)  # fmt: skip
def test_commands(text: str, found: list[list[str]]) -> None:
    assert words(text, CARDS="8") == found


def test_environment() -> None:
    text = "export A=1 B='2 3'\nC=3\nD=4\nexport D\nE=5 F=$E x $E\nenv G=6 y\n"
    first, second = commands_of(text)
    assert dict(first.environment) == {"A": "1", "B": "2 3", "D": "4", "E": "5", "F": "5"}
    assert first.words == ("x", "$E"), "as in a shell, what stands before a command is not there for its words"
    assert second.environment["G"] == "6"


def test_lines() -> None:
    (command,) = commands_of("# a\n\nA=1 \\\nx \\\n  --a 'b\nc' \\\n  --d e\n")
    assert [word.line for word in command.words] == [4, 5, 5, 7, 7]
    assert command.environment["A"].line == 3


@pytest.mark.parametrize(
    "text",
    ["x 'a", 'x "a $(', "x ${", "x $((", "x `", "<<", "x <<", "A=(", "\\", "$", "x \\", ")(", "for", "export", "eval"],
)
def test_what_does_not_end(text: str) -> None:
    commands_of(text)


@pytest.mark.parametrize("text", ["x $((2 ** 99))", "x $((1 / 0))", "x $((a[0]))", "x $((f(1)))", "x $((1 +))"])
def test_arithmetic_that_is_left(text: str) -> None:
    assert words(text) == [text.split(" ", 1)]


def test_variables_are_bounded() -> None:
    with pytest.raises(UsageError, match="more than 4000000 characters"):
        commands_of("A=xxxxxxxx\n" + "A=$A$A\n" * 100)
    commands_of("x " + "${A:-" * 5000)
    commands_of("x " + "bash -c 'x " * 5000)


def test_flags() -> None:
    found = flags_of(commands_of("a --b 1 --c-d=x --e --f y z --g 1e-4 $EXTRA", first_line=3)[0].words)
    assert found.values == {"b": 1, "c_d": "x", "e": True, "f": ["y", "z"], "g": 1e-4}
    assert (found.rest, found.lines["c_d"]) == (["a"], 3)


def test_assignments() -> None:
    found = assignments_of([Word(word, 2) for word in ["x.yaml", "a.b=1", "+c=[1,2]", "~d", "e="]])
    assert found.values == {"a.b": 1, "c": [1, 2], "d": None, "e": None}
    assert found.rest == ["x.yaml"]


@pytest.mark.parametrize(
    "folder",
    [
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        '$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )',
        "$(cd $(dirname $0); pwd)",
        '$(dirname "$0")',
        '$(dirname "$(realpath "$0")")',
        '$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")',
    ],
)
def test_the_folder_of_a_script(folder: str) -> None:
    found = commands_of(f'HERE="{folder}"\nx "$HERE/a.yaml"', {"0": "some/run.sh", "BASH_SOURCE": "some/run.sh"})
    assert found[0].words == ("x", "some/a.yaml")


@pytest.mark.parametrize("program", ["$(dirname $1)", "$(cd $OUT && pwd)", "$(cd a; rm b; pwd)", "$(realpath)"])
def test_other_programs_are_left_as_they_stand(program: str) -> None:
    assert commands_of(f'x "{program}"')[0].words == ("x", program)
