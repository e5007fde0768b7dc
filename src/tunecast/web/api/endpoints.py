"""Every address of the API, declared once: what is asked, by whom it is worked on, and what it takes.

The routes, the checks of what a client sends and /api/openapi.json are made of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tunecast.job.names import METHODS
from tunecast.learn.record import STATES
from tunecast.records import dataclass, field
from tunecast.units import KIB, MIB
from tunecast.web.api.job_schema import job_schema
from tunecast.web.api.schema import Schema, body, text

Work = Literal["lane", "once", "stream", "upload", "store", "follow"]
"""By a lane, in a moment; by a process of its own; the same, with events on the way; the same, bounded more tightly;
by a thread of the server, as workers do not see the store; the same, again and again."""
USUAL_RUNS, MOST_RUNS = 500, 5000
"""Of a list, where the request does not say how many, and at most."""
MOST_BODY_BYTES = 1 * MIB
MOST_UPLOAD_BYTES = 4 * MIB
"""As of a file that commands read (job/readers/bounds.py)."""
KINDS = ("yaml", "command", "python", "slurm", "skypilot", "report")
"""What a job is exported as (asking/exports.py)."""


@dataclass(frozen=True)
class Endpoint:
    path: str
    question: str
    """Of asking/questions.py."""
    summary: str
    work: Work = "lane"
    takes: Schema = field(default_factory=dict)
    """Of a POST: its body. Of a GET: an object of its query."""
    method: Literal["GET", "POST"] = "POST"
    answers: str = "application/json"
    schema: str = ""
    """Of the contract: the answer's `schema`, where it has one."""
    most_bytes: int = MOST_BODY_BYTES
    is_list: bool = False


JOB: Schema = {"type": "object", "description": "a job, as its file has it (docs/defaults.md)"}
CONFIG: Schema = {
    "type": ["object", "null"],
    "description": "the config.json of the job's model, where that is not bundled; `model` is then only a name",
}
NAMES: Schema = {"type": ["array", "string"], "items": text(100), "maxItems": 100, "maxLength": 1000}
MAYBE: Mapping[str, Schema] = {
    "text": {"type": ["string", "null"], "maxLength": 200},
    "number": {"type": ["number", "null"], "minimum": 0, "maximum": 1e12},
    "count": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
    "size": {"type": ["string", "integer", "null"], "maxLength": 40, "minimum": 0},
    "switch": {"type": ["boolean", "null"]},
}
FILTERS: Mapping[str, Schema] = {
    **dict.fromkeys(("gpu", "certified", "interconnect", "vendor"), MAYBE["text"]),
    **dict.fromkeys(("provider", "exclude_provider", "kind", "country"), NAMES),
    **dict.fromkeys(("eu", "no_cloud_act", "spot", "no_spot"), MAYBE["switch"]),
    **{"gpus": MAYBE["count"], "max_usd": MAYBE["number"], "max_age": MAYBE["count"]},
}
"""Options that `tunecast plan` and `tunecast offers` share, by the names of their flags."""
PLAN: Mapping[str, Schema] = {
    **FILTERS,
    "within": {"type": ["string", "number", "null"], "maxLength": 40, "description": "6h, 90min, 2d, or seconds"},
    **{"nodes_up_to": MAYBE["count"], "runs": MAYBE["count"]},
    **dict.fromkeys(("validated", "weekly", "marketplace", "reserved", "eur"), MAYBE["switch"]),
    **dict.fromkeys(("keep", "allow"), NAMES),
    "as_of": {"type": ["string", "null"], "maxLength": 40, "description": "a day: 2026-09-01"},
    **dict.fromkeys(("interruptions", "usd_per_eur", "vat"), MAYBE["number"]),
    **dict.fromkeys(("storage", "egress"), MAYBE["size"]),
}
FILE = {"name": text(255, "of the file, for its ending", minLength=1), "text": text(MOST_UPLOAD_BYTES, "what it holds")}
UPLOAD = {"work": "upload", "most_bytes": MOST_UPLOAD_BYTES + 64 * KIB}


def of_job(**more: Schema) -> dict[str, Any]:
    return body(
        {"job": JOB, "model_config": CONFIG, **more}, "job", *(name for name in more if name in ("other", "as"))
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "/api/predict",
        "predict",
        "memory, time and energy of a job: what `tunecast predict --json` prints",
        takes=of_job(cost={"type": "boolean", "description": "with what the job's own machines cost"}),
        schema="tunecast.prediction/1",
    ),
    Endpoint(
        "/api/cards",
        "cards",
        "the job's need against every card of the catalogue",
        takes=of_job(
            exact={"type": "boolean", "description": "replay every card's own run: seconds instead of a moment"}
        ),
        schema="tunecast.cards/1",
    ),
    Endpoint(
        "/api/look",
        "look",
        "what the page shows of a job at once: the verdict in words, the job with every default, its prediction, cards "
        "and memory phase by phase",
        takes=of_job(
            cards={
                "type": "boolean",
                "description": "false: `cards` and `outside.evaluation` are null, and the rest comes in a third of "
                "the time",
            }
        ),
        schema="tunecast.look/1",
    ),
    Endpoint(
        "/api/plan",
        "plan",
        "which machines to rent: server-sent events `progress`, `choice` (of each hardware the cheapest, as it is "
        "found), `failure` where no pick keeps to the limits, then `plan` (what `tunecast plan --json` prints), or "
        "`error`",
        "stream",
        of_job(**PLAN),
        answers="text/event-stream",
    ),
    Endpoint(
        "/api/fit",
        "fit",
        "the smallest changes that make a job fit: what `tunecast fit --json` prints",
        "once",
        of_job(allow=NAMES),
        schema="tunecast.fit/1",
    ),
    Endpoint(
        "/api/compare",
        "compare",
        "what differs between two jobs, and what each difference costs: what `tunecast compare --json` prints",
        "once",
        of_job(other=JOB),
        schema="tunecast.compare/1",
    ),
    Endpoint(
        "/api/export",
        "export",
        "a job as a file to take along",
        "once",
        of_job(**{"as": {"type": "string", "enum": list(KINDS)}}),
        answers="text/plain",
    ),
    Endpoint(
        "/api/read",
        "read",
        "the job understood from a file somebody trains with: what `tunecast read --json` prints",
        takes=body(
            {**FILE, "values": {"type": ["object", "null"], "description": "keys that win over the file's"}}, *FILE
        ),
        schema="tunecast.job/1",
        **UPLOAD,  # type: ignore[arg-type]
    ),
    Endpoint(
        "/api/patch",
        "patch",
        "a file somebody trains with, changed in its place to be the job: its text, the diff, what it says now, and "
        "what such a file does not say",
        takes=body({"job": JOB, "model_config": CONFIG, **FILE}, "job", *FILE),
        schema="tunecast.patch/1",
        **UPLOAD,  # type: ignore[arg-type]
    ),
    Endpoint(
        "/api/data",
        "data",
        "what training data holds: what `tunecast data --json` prints",
        takes=body(FILE, *FILE),
        schema="tunecast.data/1",
        **UPLOAD,  # type: ignore[arg-type]
    ),
    Endpoint(
        "/api/models",
        "models",
        "bundled models whose name, Hub ids or family hold every word of q",
        takes=body({"q": text(200), "family": text(64)}),
        method="GET",
        is_list=True,
    ),
    Endpoint(
        "/api/gpus",
        "gpus",
        "the cards a job can name",
        takes=body({"q": text(200), "vendor": text(64), "min_memory": text(40)}),
        method="GET",
        schema="tunecast.gpus/1",
    ),
    Endpoint(
        "/api/offers",
        "offers",
        "what machines cost, where, with the age and source of every price",
        takes=body({"q": text(200), **FILTERS}),
        method="GET",
        schema="tunecast.offers/1",
    ),
    Endpoint(
        "/api/runs",
        "runs",
        "measured runs, the newest first: what `tunecast runs --json` prints, with those that go on before all others "
        "and `line`, the last that compared such a run with its prediction",
        "store",
        body(
            {
                **dict.fromkeys(("gpu", "model"), text(200)),
                "method": {"type": "string", "enum": list(METHODS)},
                "state": {"type": "string", "enum": list(STATES)},
                "since": text(40, "a day, or how long ago: 30d"),
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_RUNS, "default": USUAL_RUNS},
            }
        ),
        method="GET",
        is_list=True,
    ),
    Endpoint(
        "/api/runs/live",
        "live",
        "runs of this machine that go on: a server-sent event `runs` with all of them, as /api/runs has them, at once "
        "and whenever one has changed, until the client goes",
        "follow",
        body({}),
        method="GET",
        answers="text/event-stream",
    ),
    Endpoint(
        "/api/runs/{id}",
        "run",
        "the record of a run, by its id or the first digits that no other begins with",
        "store",
        body({"id": text(64, "hex digits", minLength=1)}, "id"),
        method="GET",
        schema="tunecast.run/1",
    ),
    Endpoint(
        "/api/calibration",
        "calibration",
        "what predictions learned from measured runs: what `tunecast calibration --json` prints",
        "store",
        body({"gpu": text(200)}),
        method="GET",
        schema="tunecast.calibration-shown/1",
    ),
)


def published_takes(endpoint: Endpoint) -> dict[str, Any]:
    """What it takes, with every field of a job: workers check those by their own rules (job/mapping.py)."""
    takes = dict(endpoint.takes)
    inner = dict(takes.get("properties", {}))
    for name in ("job", "other"):
        if name in inner:
            inner[name] = job_schema()
    return {**takes, "properties": inner}
