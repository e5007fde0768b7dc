"""A job as what somebody takes along: a job file, a command, Python, a Slurm script, a SkyPilot task, a report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from datetime import date

from tunecast import __version__
from tunecast.job.job import Job, all_knobs
from tunecast.report.draw.job_yaml import job_in_yaml

Exported = tuple[str, str]
"""The name of a file, and what it holds."""


def export(job: Job, kind: str) -> Exported:
    """`kind`: one of `KINDS`."""
    return KINDS[kind](job)


def changed_fields(job: Job) -> dict[str, object]:
    """Fields that were given, as flags and Python take them, but for the model and what is a default anyway."""
    defaults = {name: knob.default for name, knob in all_knobs().items()}
    values = {name: value for name, value in job.flat().items() if name != "model" and job.is_given(name)}
    told = {name: value for name, value in values.items() if value != defaults[name]}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def as_yaml(job: Job) -> Exported:
    return "job.yaml", job_in_yaml(job) + "\n"


def as_command(job: Job) -> Exported:
    from tunecast.report.run.wording import as_flags

    return "command.sh", f"tunecast predict {shlex.quote(job.model)} {as_flags(changed_fields(job))}".rstrip() + "\n"


def as_python(job: Job) -> Exported:
    fields = "".join(f"    {json.dumps(name)}: {_literal(value)},\n" for name, value in changed_fields(job).items())
    overrides = f", {{\n{fields}}}" if fields else ""
    lines = (
        "import tunecast",
        "",
        f"job = tunecast.read({json.dumps(job.model)}{overrides})",
        "prediction = tunecast.predict(job)",
        "print(prediction.fits, prediction.memory.device_bytes, prediction.time.step_s)",
    )
    return "predict.py", "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    """In Python, with double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def launch_exporter(engine: str) -> Callable[[Job], Exported]:
    def files(job: Job) -> Exported:
        """All files in one, as a shell script that writes them: a training is more than its batch script."""
        from tunecast.door.launch import launch
        from tunecast.launching.rendering import Rendering

        made = launch(job, on=engine, dry_run=True)
        assert isinstance(made, Rendering)
        parts = [f"# {note}" for note in made.notes]
        for name, text in made.files.items():
            end = _unused_word(text)
            parts += [f"cat > {shlex.quote(name)} << '{end}'", text.removesuffix("\n"), end]
        parts += [f"# {shlex.join(words)}" for words in made.commands]
        return f"{engine}.sh", "\n".join(("#!/bin/sh", *parts)) + "\n"

    return files


def _unused_word(text: str) -> str:
    """Ends a here-document, and is no line of it."""
    word = "END_OF_FILE"
    while word in text:
        word += "_"
    return word


def as_report(job: Job) -> Exported:
    """The page of `tunecast predict --html`."""
    from tunecast.door.predict import predict
    from tunecast.door.suggestions import rent_of_run, suggestions
    from tunecast.prediction.memory import needs
    from tunecast.report.page.document import Provenance
    from tunecast.report.page.job import timeline_html
    from tunecast.report.run.job import JobReport
    from tunecast.report.run.on_card import SAMPLES, run_timeline
    from tunecast.report.run.wording import FIELDS

    found = predict(job, engine="analytic")
    report = JobReport(found, rent_of_run(found), suggestions(found), wording=FIELDS, with_blocks=True)
    held = found.on_card
    packages = ", ".join(f"{name} {version}" for name, version in sorted(held.versions.items()))
    made = Provenance(
        as_command(job)[1].strip(),
        __version__,
        date.today(),
        job_in_yaml(job),
        f"follows {packages}" if packages else "",
    )
    samples = needs.timeline(held.tape, held.settings, SAMPLES)
    timeline = run_timeline(held.tape, samples, held.peak.event)
    return "report.html", timeline_html(report.figures, timeline, report.beside(made, ""))


KINDS: Mapping[str, Callable[[Job], Exported]] = {
    **{"yaml": as_yaml, "command": as_command, "python": as_python, "report": as_report},
    **{"slurm": launch_exporter("slurm"), "skypilot": launch_exporter("skypilot")},
}
