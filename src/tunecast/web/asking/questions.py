"""Every question of the API, put to the doors that Python and the commands go through.

"predict", JSON that a client sent ──► `answer` ──► JSON of the contract, or `refusal` of what was raised
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from tunecast.errors import DEBUG, NotResolved, TunecastError, UsageError, internal_error
from tunecast.job.readers.bounds import decoded
from tunecast.job.readers.json import parsed
from tunecast.web.api.endpoints import ENDPOINTS
from tunecast.web.api.schema import problems
from tunecast.web.asking.jobs import Asker, job_of, own_file

__all__ = ["QUESTIONS", "Asker", "answer", "refusal"]

Given = Mapping[str, Any]
BAD, UNPROCESSABLE, INTERNAL = 400, 422, 500
MOST_PROBLEMS = 20
PROGRESS_EVERY_S = 0.1
TAKES = {endpoint.question: endpoint.takes for endpoint in ENDPOINTS}
NETWORK = ("available",)
"""Options of plans and offers for which providers are asked."""
UPLOADS = (".yaml", ".yml", ".json", ".sh", ".bash", ".slurm", ".sbatch", ".toml", ".py")
DATA_ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".txt")


class BadRequest(UsageError):
    """Not what is declared, whatever it says of a job."""


def answer(question: str, body: bytes, asker: Asker) -> Any:
    """`body`: JSON, as a client sent it. Raises `TunecastError` for what is wrong with it."""
    return QUESTIONS[question](given_of(question, body), asker)


def given_of(question: str, body: bytes) -> Given:
    try:
        given = parsed(decoded(body, "the request"), "the request")
    except UsageError as error:
        raise BadRequest(error.message, field=error.field) from None
    wrong = list(islice(problems(TAKES[question], given), MOST_PROBLEMS))
    if wrong:
        told = "\n".join(f"{place or 'the request'}: {why}" for place, why in wrong)
        raise BadRequest(told, field=wrong[0][0] or None)
    return dict(given)


def refusal(error: Exception) -> dict[str, Any]:
    """The status of HTTP, and what the command line would say with `--json`."""
    if isinstance(error, TunecastError):
        told = {"code": error.code, "field": error.field, "message": error.message}
        return {"status": BAD if isinstance(error, BadRequest) else UNPROCESSABLE, "error": told}
    if isinstance(error, (MemoryError, RecursionError)):
        told = {"code": "limit", "field": None, "message": "this takes more memory than a request may have"}
        return {"status": UNPROCESSABLE, "error": told}
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    return {"status": INTERNAL, "error": {"code": "internal", "field": None, "message": internal_error(error)}}


def predict(given: Given, asker: Asker) -> Any:
    from tunecast.door.predict import predict

    with job_of(given, asker) as job:
        return predict(job, engine="analytic", cost=bool(given.get("cost"))).to_dict()


def cards(given: Given, asker: Asker) -> Any:
    from tunecast.door.cards import cards

    with job_of(given, asker) as job:
        return cards(job, every_replay=bool(given.get("exact"))).to_dict()


def look(given: Given, asker: Asker) -> Any:
    from tunecast.web.asking.look import look

    with job_of(given, asker) as job:
        return look(job, every_card=given.get("cards", True))


def compare(given: Given, asker: Asker) -> Any:
    from tunecast.door.compare import compare

    with job_of(given, asker) as job, job_of(given, asker, "other") as other:
        return compare(job, other).to_dict()


def fit(given: Given, asker: Asker) -> Any:
    from tunecast.door.fit import fit

    tried = 0

    def tick() -> None:
        nonlocal tried
        tried += 1
        asker.tell({"event": "progress", "data": {"tried": tried}})

    with job_of(given, asker) as job:
        return fit(job, allow=given.get("allow", ()), tick=tick).to_dict()


def plan(given: Given, asker: Asker) -> Any:
    from tunecast.door.plan import Planner
    from tunecast.planning.choice import Choice

    told_s = 0.0

    def progress(seconds: float, done: int, all_of_them: int) -> None:
        nonlocal told_s
        if told_s and seconds < told_s + PROGRESS_EVERY_S:
            return
        told_s = seconds
        asker.tell({"event": "progress", "data": {"seconds": round(seconds, 3), "done": done, "all": all_of_them}})

    def found(choice: Choice) -> None:
        asker.tell({"event": "choice", "data": choice.to_dict()})

    options = {name: value for name, value in given.items() if name not in ("job", "model_config")}
    require_no_network(options)
    with job_of(given, asker) as job:
        made = Planner(job, options, progress, found).plan()  # type: ignore[arg-type]
        if made.failure is not None:
            asker.tell({"event": "failure", "data": refusal(made.failure)["error"]})
        return made.to_dict()


def read(given: Given, asker: Asker) -> Any:
    """What was uploaded, understood as `tunecast read` does; never executed, and it opens no other file."""
    from tunecast.door.read import recipe

    with own_file(upload_name(given["name"], UPLOADS), given["text"]) as path:
        return recipe(path, given.get("values") or {}).to_dict()


def patch(given: Given, asker: Asker) -> Any:
    """What was uploaded, with the job's values; never executed, and it opens no other file."""
    from pathlib import Path

    from tunecast.web.asking.patching import patch_file

    name = upload_name(given["name"], UPLOADS)
    with job_of(given, asker) as job, own_file(name, given["text"]) as path:
        return patch_file(Path(path), job, pasted=given.get("model_config") is not None)


def data(given: Given, asker: Asker) -> Any:
    from tunecast.door.data import data

    with own_file(upload_name(given["name"], DATA_ENDINGS), given["text"]) as path:
        return data(path).to_dict()


def upload_name(given: str, endings: tuple[str, ...]) -> str:
    """The last part of a file's name, as a file may be called here. A config.json keeps its name, since that says what
    it is."""
    last = given.replace("\\", "/").rpartition("/")[2]
    stem, dot, ending = last.rpartition(".")
    if f"{dot}{ending.lower()}" not in endings:
        raise UsageError.at("name", f"got {given[:80]!r}; allowed: a file that ends in {', '.join(endings)}")
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in stem)[:60].strip("-")
    return f"{plain or 'upload'}.{ending.lower()}"


def models(given: Given, asker: Asker) -> Any:
    """Nothing found is an empty list: who types is not done yet."""
    from tunecast.door.catalogue import models

    try:
        found = models(given.get("q", ""), family=given.get("family"))
    except NotResolved:
        return []
    return found.to_dict()


def gpus(given: Given, asker: Asker) -> Any:
    from tunecast.door.catalogue import gpus

    words = (given["q"],) if given.get("q") else ()
    return gpus(*words, vendor=given.get("vendor"), min_memory=given.get("min_memory", 0)).to_dict()


def offers(given: Given, asker: Asker) -> Any:
    from tunecast.door.offers import offers

    require_no_network(given)
    words = (given["q"],) if given.get("q") else ()
    return offers(*words, **{name: value for name, value in given.items() if name != "q"}).to_dict()


def export(given: Given, asker: Asker) -> Any:
    from tunecast.web.asking.exports import export

    with job_of(given, asker) as job:
        name, text = export(job, given["as"])
        return {"schema": "tunecast.export/1", "as": given["as"], "name": name, "text": text}


def require_no_network(options: Given) -> None:
    for name in NETWORK:
        if options.get(name):
            raise UsageError.at(name, "got true; allowed: false, as no request leaves this machine")


QUESTIONS: Mapping[str, Callable[[Given, Asker], Any]] = {
    **{"predict": predict, "cards": cards, "look": look, "compare": compare, "fit": fit, "plan": plan},
    **{"read": read, "patch": patch, "data": data},
    **{"models": models, "gpus": gpus, "offers": offers, "export": export},
}
