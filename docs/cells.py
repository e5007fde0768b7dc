"""docs/notebook.ipynb, executed: the cells below, with what they print and show. Needs no Jupyter.

    python docs/cells.py                rewrite the notebook (./dev docs does)
    python docs/cells.py --check        name the cells whose printed output differs, and change nothing

A code cell is run by `exec`; its last expression is shown as Jupyter shows one, as text and, where the value draws
itself, as HTML. The day is fixed, so that prices and their ages stay as they are.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        "# tunecast from Python\n\n"
        "Everything the commands can do is a function. What a command prints with `--json` is `to_dict()` of what the "
        "function returns, and attributes have the same names ([the contract](contract.md#python)). No GPU, no torch, "
        "no network.",
    ),
    (
        "code",
        'import tunecast\n\njob = tunecast.read("examples/llama-3.1-8b-qlora.yaml", gpu="rtx-4090")\njob',
    ),
    ("markdown", "**Does it fit, and how long does it take?** Each part is computed when it is read."),
    ("code", "p = tunecast.predict(job)\np"),
    (
        "code",
        "print(p.fits, p.fits_surely, p.exactness)\n"
        'print(f"{p.memory.device_bytes / 2**30:.2f} GiB, {p.time.step_s:.2f} s per step")\n'
        "for part, nbytes in p.memory.breakdown_bytes.items():\n"
        '    print(f"{part:<16} {nbytes / 2**20:9,.0f} MiB")',
    ),
    ("markdown", "**What to rent?** Every flag of `tunecast plan` is an option, by its name."),
    ("code", 'plan = tunecast.plan(job, within="6h", eu=True, as_of="2026-11-15")\nplan'),
    (
        "code",
        "for name, pick in plan.picks.items():\n"
        "    if pick is not None:\n"
        '        print(f"{name:<9} {pick.hardware:<19} {pick.offer.provider:<13} {pick.total_s / 3600:5.2f} h "\n'
        '              f"{pick.total_usd:6.2f} USD  {dict(pick.changes)}")',
    ),
    ("markdown", "**What would another value do?** And what makes a job fit that does not?"),
    ("code", "tunecast.compare(job, rank=64, seq_len=4096)"),
    ("code", 'fit = tunecast.fit(job, {"seq_len": 16384})\nfit'),
    ("code", "print([dict(change.set) for change in fit.changes])\nprint(tunecast.predict(fit.job).fits)"),
)


def executed(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell, as a notebook's file has them."""
    *body, last = ast.parse(source).body
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if not isinstance(last, ast.Expr):
            body, last = [*body, last], None  # type: ignore[assignment]
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if shown is not None:
        data = {"text/html": lines(shown._repr_html_()), "text/plain": [f"<{type(shown).__name__}>"]}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook() -> dict[str, Any]:
    """Every cell, executed one after another beside a copy of examples/, without a configuration of the user."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count, here = [], 0, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        os.symlink(ROOT / "examples", Path(folder, "examples"))
        os.chdir(folder)
        try:
            for number, (kind, source) in enumerate(CELLS):
                cell: dict[str, Any] = {
                    "cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines(source)
                }  # fmt: skip
                if kind == "code":
                    count += 1
                    outputs = executed(source, names)
                    for output in outputs:
                        if "execution_count" in output:
                            output["execution_count"] = count
                    cell |= {"execution_count": count, "outputs": outputs}
                cells.append(cell)
        finally:
            os.chdir(here)
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def texts(of: dict[str, Any]) -> list[tuple[str, str]]:
    """(source, what was printed) of each code cell."""
    return [
        ("".join(cell["source"]), "".join(line for out in cell["outputs"] for line in out.get("text", [])))
        for cell in of["cells"]
        if cell["cell_type"] == "code"
    ]


def main() -> int:
    made = notebook()
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    differ = [now for now, before in zip(texts(made), texts(kept), strict=True) if now != before]
    for source, printed in differ:
        print(f"differs:\n{source}\n{printed}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    raise SystemExit(main())
