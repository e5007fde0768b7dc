"""What `tunecast diff` says, as text and as Markdown that stays text whatever files are called and hold."""

from __future__ import annotations

import re

import pytest

from tunecast.cli.diff import ANY, NEVER, exit_code, parser
from tunecast.planning.file_changes import FieldChange, FileChange, FileChanges, FileState
from tunecast.records import replace
from tunecast.report.lists.diff import MOST_CHANGES, MOST_CHARACTERS, diff_markdown, diff_text, headline
from tunecast.units import GIB

STATE = FileState(
    title="gpt2, LoRA, 8 x 1,024 tokens on 1 x RTX 4090", framework="trl", verdict="fits", fits=True,
    fits_surely=True, needs_bytes=12 * GIB, capacity_bytes=22 * GIB, exactness="exact", not_understood=0, step_s=1.0,
    total_s=3600.0, total_usd=2.0, usd_per_million_tokens=0.1, offer="1 x rtx-4090 at verda, on demand", plan=None,
)  # fmt: skip
LARGER = STATE._replace(
    verdict="does not fit",
    fits=False,
    fits_surely=False,
    needs_bytes=30 * GIB,
    step_s=2.5,
    total_s=9000.0,
    total_usd=5.0,
)
LONGER = FieldChange("seq_len", "max_length", "a.yaml", 3, 1024, 4096, 18 * GIB, 1.5)
CHANGED = FileChange("a.yaml", "a.yaml", "changed", STATE, LARGER, (LONGER,), 1.5, None, None)
NEW = FileChange("new.yaml", "new.yaml", "new", None, STATE, (), None, None, None)
GONE = FileChange("old.yaml", "old.yaml", "deleted", STATE, None, (), None, None, None)
BROKEN = FileChange("b.yaml", "b.yaml", "changed", STATE, None, (), None, "b.yaml: line 2: not YAML", None)
HOSTILE = "[x](http://evil.example) <img src=x onerror=alert(1)> @octocat #1 `|` $a$ </details><!-- tunecast -->\n# h"


def changes(*files: FileChange, left_out: int = 0) -> FileChanges:
    return FileChanges("main", "the working tree", files, left_out)


def test_the_verdict_comes_first() -> None:
    assert diff_text(changes(CHANGED, NEW, GONE, BROKEN, left_out=2)) == (
        "4 training files changed from main to the working tree: 1 does not fit, 1 cannot be predicted; 2 more were "
        "not looked at\n\n"
        "a.yaml: does not fit, 8.00 GiB over (fits before)\n"
        "  gpt2, LoRA, 8 x 1,024 tokens on 1 x RTX 4090\n"
        "  needs 12.00 GiB → 30.00 GiB of the 22.00 GiB\n"
        "  per step 1 s → 2.5 s (2.5 times as slow for the same tokens); whole run 1 h → 2 h 30 min; cost\n"
        "    $2.00 → $5.00 (of what does not fit, as if it did)\n"
        "  cost on 1 x rtx-4090 at verda, on demand\n"
        "  max_length (line 3): 1024 → 4096: needs 18.00 GiB more, 2.5 times as slow\n\n"
        "new.yaml: fits, 10.00 GiB to spare (new)\n"
        "  gpt2, LoRA, 8 x 1,024 tokens on 1 x RTX 4090\n"
        "  needs 12.00 GiB of the 22.00 GiB\n"
        "  per step 1 s; whole run 1 h; cost $2.00\n"
        "  cost on 1 x rtx-4090 at verda, on demand\n\n"
        "old.yaml: deleted\n\n"
        "b.yaml: no answer\n"
        "  line 2: not YAML\n"
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "no training file changed from main to the working tree"),
        ((NEW,), "1 training file changed from main to the working tree: it fits"),
        ((NEW, NEW), "2 training files changed from main to the working tree: all fit"),
        ((GONE,), "1 training file changed from main to the working tree: none is left"),
    ],
)
def test_the_first_line(files: tuple[FileChange, ...], words: str) -> None:
    assert headline(changes(*files)) == words


def test_what_only_follows_and_costs_nothing_is_left_out() -> None:
    follows = FieldChange("run.eval_batch", "", "", 0, 2, 4, 0, 0.0)
    assert diff_text(changes(replace(CHANGED, changes=(LONGER, follows)))) == diff_text(changes(CHANGED))
    assert "run.eval_batch: 2 → 4" in diff_text(changes(replace(CHANGED, changes=(follows._replace(needs_bytes=GIB),))))


def test_what_changed_nothing_is_said() -> None:
    same = replace(CHANGED, after=STATE, changes=(), more_time_fraction=0.0)
    assert "no change of what it needs" in diff_text(changes(same))


def test_the_table_of_a_pull_request() -> None:
    text = diff_markdown(changes(CHANGED, GONE, BROKEN))
    assert text.startswith("**3 training files changed from main to the working tree: 1 does not fit, 1 cannot be")
    row = next(line for line in text.splitlines() if line.startswith("| `a.yaml`"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:5] == [
        "**does not fit, 8.00 GiB over (fits before)**", "12.00 GiB → 30.00 GiB of 22.00 GiB",
        "1 s → 2.5 s<br>2.5 times as slow for the same tokens", "1 h → 2 h 30 min",
    ]  # fmt: skip
    assert "- old.yaml: deleted\n- b.yaml: line 2: not YAML" in text
    assert "<summary>What changed in <code>a.yaml</code></summary>\n\n- max\\_length (line 3): 1024 → 4096:" in text


def hostile(number: int = 0, changed: int = 1) -> FileChange:
    change = FieldChange("model", HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, None, None)
    state = STATE._replace(title=HOSTILE, offer=HOSTILE, not_understood=3)
    name = f"{HOSTILE}{number}"
    return FileChange(name, HOSTILE, "changed", state, state, (change,) * changed, 0.5, None, HOSTILE)


def test_hostile_names_stay_text() -> None:
    broken = replace(BROKEN, path=HOSTILE, problem=HOSTILE)
    found = replace(changes(hostile(), broken), base=HOSTILE)
    text = diff_markdown(found)
    outside_of_code = re.sub(r"`[^`\n]*`", "", text)
    assert set(re.findall(r"</?[a-z]+[^>]*>|<!--.*?-->", outside_of_code)) <= {
        "<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>", "<sub>", "</sub>", "<br>",
        "<span>", "</span>", "<!-- -->",
    }  # fmt: skip
    assert outside_of_code.count("<details>") == outside_of_code.count("</details>") == 1
    unlinked = re.sub(r"<code>.*?</code>", "", outside_of_code)
    assert not re.search(r"(?<!\\)\[x|@octocat|#1|http://evil|\n# h", unlinked)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}


def test_a_terminal_is_not_steered() -> None:
    steering = "a\x1b[2J\u202e\rb.yaml"
    text = diff_text(changes(replace(CHANGED, path=steering, old_path=steering)))
    assert "\x1b" not in text and "\u202e" not in text and "\r" not in text


def test_a_comment_is_not_longer_than_github_takes() -> None:
    for files in (40, 400):
        text = diff_markdown(changes(*(hostile(number, changed=60) for number in range(files))))
        assert 1000 < len(text) <= MOST_CHARACTERS
    assert "more files are not shown." in text
    assert f"and {60 - MOST_CHANGES} more fields" in diff_markdown(changes(hostile(changed=60)))


@pytest.mark.parametrize(
    ("files", "fail_on", "code"),
    [
        ((CHANGED, BROKEN), NEVER, 0),
        ((CHANGED,), "does-not-fit", 3),
        ((NEW, GONE, BROKEN), "does-not-fit", 0),
        ((replace(NEW, after=STATE._replace(verdict="may not fit")),), "does-not-fit", 0),
        ((replace(NEW, after=STATE._replace(verdict="may not fit")),), "may-not-fit", 3),
        ((NEW, BROKEN), ANY, 5),
        ((NEW, CHANGED, BROKEN), ANY, 3),
    ],
)
def test_it_fails_only_where_asked(files: tuple[FileChange, ...], fail_on: str, code: int) -> None:
    assert exit_code(changes(*files), fail_on) == code


def test_nothing_fails_unless_asked() -> None:
    assert parser().read([]).fail_on == NEVER
    assert exit_code(changes(left_out=1), ANY) == 5


def test_the_json_has_what_the_text_says() -> None:
    told = changes(CHANGED).to_dict()
    assert (told["schema"], told["base"], told["head"], told["left_out"]) == (
        "tunecast.diff/1", "main", "the working tree", 0,
    )  # fmt: skip
    assert told["files"][0]["after"]["needs_bytes"] == 30 * GIB
    assert told["files"][0]["changes"][0]["key"] == "max_length"
