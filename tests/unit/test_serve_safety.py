"""Whom `tunecast serve` answers and what of a request it takes: everything that needs no server to be seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.job.job import all_knobs
from tunecast.web import safety
from tunecast.web.api.endpoints import ENDPOINTS, KINDS, PLAN
from tunecast.web.api.job_schema import job_schema
from tunecast.web.api.openapi import document
from tunecast.web.api.query import query_values
from tunecast.web.api.schema import body, problems
from tunecast.web.asking import exports, jobs, questions, stored
from tunecast.web.asking.jobs import Asker
from tunecast.web.safety import (
    HEADERS,
    Access,
    RateLimit,
    access_for,
    editor_origins,
    headers_for,
    host_of,
    is_token,
    token_in,
)

OF_STORE = ("store", "follow")
LOCAL = access_for("127.0.0.1", None, ())
TOKEN = "0123456789abcdef" * 4


def denied(access: Access = LOCAL, path: str = "/api/predict", method: str = "POST", **headers: str) -> int | None:
    given = {"host": "127.0.0.1:8765", **{name.replace("_", "-"): value for name, value in headers.items()}}
    found = access.denial({name: [value] for name, value in given.items() if value}, path, method)
    return None if found is None else found.status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8765", "LOCALHOST:9000", "[::1]:8765"])
def test_its_own_names_are_answered(host: str) -> None:
    assert denied(host=host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "evil.example#127.0.0.1", "0.0.0.0:8765",
     "127.0.0.1@evil.example", "localhost:port", "127.1", "a" * 300, " localhost", "localhost/x", "2130706433"],
)  # fmt: skip
def test_a_name_that_was_made_to_mean_this_machine_is_refused(host: str) -> None:
    """DNS rebinding: the browser sends the name it was asked for."""
    assert denied(host=host) == 403


def test_no_host_and_two_hosts_are_refused() -> None:
    assert LOCAL.denial({}, "/", "GET") is not None
    assert LOCAL.denial({"host": ["localhost", "evil.example"]}, "/", "GET") is not None


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8765", "file://", "https://127.0.0.1",
     "http://127.0.0.1:8765.evil.example", "http://127.0.0.1:8765/"],
)  # fmt: skip
def test_another_origin_is_refused(origin: str) -> None:
    assert denied(origin=origin) == 403
    assert denied(origin=origin, path="/", method="GET") == 403


def test_the_page_itself_may_ask() -> None:
    assert denied(origin="http://127.0.0.1:8765", sec_fetch_site="same-origin") is None
    assert denied(sec_fetch_site="none") is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_another_site_asks_is_refused_also_without_an_origin(site: str) -> None:
    """A browser sends none with an image, a script or a link; those may lead to the page, and never to the API."""
    assert denied(sec_fetch_site=site, path="/api/models", method="GET") == 403
    assert denied(sec_fetch_site=site, path="/", method="GET") is None


def test_no_page_frames_it_unless_the_server_was_started_so() -> None:
    assert headers_for() is HEADERS and "frame-ancestors 'none'" in HEADERS["content-security-policy"]
    assert HEADERS["x-frame-options"] == "DENY"


def test_an_editor_frames_it_and_nothing_else_changes() -> None:
    given = ["vscode-webview://1a2b-3c", "vscode-file://vscode-app", "vscode-webview://1a2b-3c"]
    opened = headers_for(editor_origins(given))
    policy = opened["content-security-policy"]
    assert policy.endswith("; frame-ancestors vscode-webview://1a2b-3c vscode-file://vscode-app")
    assert policy.partition("frame-ancestors")[0] == HEADERS["content-security-policy"].partition("frame-ancestors")[0]
    left = {name: text for name, text in opened.items() if name != "content-security-policy"}
    assert left == {
        name: text for name, text in HEADERS.items() if name not in ("content-security-policy", "x-frame-options")
    }


@pytest.mark.parametrize(
    "origin",
    ["*", "'self'", "http:", "vscode-webview:", "http://*", "http://*.example", "http://a b", "http://a; script-src *",
     "http://a,b", "data://x", "file://x", "http://a/path", "http://a\r\nx-other: 1", "http://user@a", "", "http://"],
)  # fmt: skip
def test_only_whole_origins_are_taken(origin: str) -> None:
    with pytest.raises(UsageError, match="--framed-by"):
        editor_origins([origin])


def test_an_editor_in_a_browser_passes_on_in_its_own_name() -> None:
    """As code-server's proxy does, which sends on the Host that the browser sent."""
    access = access_for("127.0.0.1", None, (), editor_origins(["https://Code.example:8443/", "vscode-webview://x"]))
    assert access.names == LOCAL.names | {"code.example"}
    same = {"host": "code.example:8443", "origin": "https://code.example:8443", "sec_fetch_site": "same-origin"}
    assert denied(access, **same) is None
    assert denied(access, **{**same, "sec_fetch_site": "cross-site"}) == 403
    assert denied(access, **{**same, "origin": "https://evil.example"}) == 403
    assert denied(access, host="evil.example") == 403
    assert denied(host="code.example:8443") == 403, "without --framed-by"


def test_a_team_needs_a_token() -> None:
    with pytest.raises(UsageError, match="--token-file"):
        access_for("0.0.0.0", None, ())
    shared = access_for("0.0.0.0", TOKEN, ("gpu-box", "gpu-box.lan"))
    assert denied(shared, host="gpu-box:8765") == 401
    assert denied(shared, host="gpu-box.lan", authorization=f"Bearer {TOKEN}") is None
    assert denied(shared, host="10.0.0.5:8765", authorization=f"bearer {TOKEN}") is None
    assert denied(shared, host="evil.example", authorization=f"Bearer {TOKEN}") == 403
    assert denied(shared, host="gpu-box", path="/", method="GET") is None
    assert denied(shared, host="gpu-box", path="/api/health", method="GET") is None


@pytest.mark.parametrize("given", ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}0", "Bearer é"])
def test_a_wrong_token(given: str) -> None:
    assert not is_token(given, TOKEN)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one function of the standard library that is made for it, whatever the scheme says."""
    asked: list[bytes] = []

    def compare(given: bytes, token: bytes) -> bool:
        asked.append(given)
        return given == token

    monkeypatch.setattr(safety.hmac, "compare_digest", compare)
    assert is_token(f"Bearer {TOKEN}", TOKEN) and not is_token("Basic x", TOKEN)
    assert asked == [TOKEN.encode(), b"x"]


def test_a_token_file_is_private_and_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        token_in(str(path))
    path.chmod(0o600)
    assert token_in(str(path)) == TOKEN
    path.write_text("short")
    with pytest.raises(UsageError, match="no token"):
        token_in(str(path))
    with pytest.raises(NotResolved, match="No such file"):
        token_in(str(tmp_path / "none"))


def test_names_of_hosts() -> None:
    assert host_of("Example.com:80") == "example.com" and host_of("[::1]") == "::1" and host_of("a b") is None


def test_rate() -> None:
    now = 0.0
    rate = RateLimit(burst=3, per_s=2, addresses=2, clock=lambda: now)
    assert [rate.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rate.take("b") == 0
    now = 0.5  # one more
    assert rate.take("a") == 0 and rate.take("a") > 0
    rate.take("b", cost=50)
    assert rate.take("b") > 1, "a wrong token counts for many"
    rate.take("c")
    assert len(rate._left) == 2, "addresses are not collected without end"


# ------------------------------------------------------------------------------------------ what a request may name


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "./x", "../x", "~/x", "a/../../etc", "x.json", "C:\\x", "/models/llama-3.1-8b", "..", "/"]
)
def test_a_model_is_never_a_path(name: str) -> None:
    for content in ({"model": name}, {"model": "llama-3.1-8b", "distill": {"teacher": name}},
                    {"model": "llama-3.1-8b", "rl": {"reward_model": name}}):  # fmt: skip
        for hub in (False, True):
            with pytest.raises(NotResolved, match="allowed: a bundled model"):
                jobs.require_no_paths(content, Asker(hub), pasted=False)


def test_bundled_models_by_any_name_and_hub_ids_where_allowed() -> None:
    for name in ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "unsloth/Qwen3-8B"):
        jobs.require_no_paths({"model": name}, Asker(hub=False), pasted=False)
    with pytest.raises(NotResolved, match="--hub"):
        jobs.require_no_paths({"model": "somebody/something"}, Asker(hub=False), pasted=False)
    jobs.require_no_paths({"model": "somebody/something"}, Asker(hub=True), pasted=False)


@pytest.mark.parametrize("field", ["path", "tokenizer"])
def test_data_is_never_a_path(field: str) -> None:
    with pytest.raises(UsageError, match="no request may name"):
        jobs.require_no_paths({"model": "llama-3.1-8b", "data": {field: "x"}}, Asker(hub=True), pasted=False)


def test_every_field_of_free_text_is_looked_at_or_opens_nothing() -> None:
    text = {tuple(name.split(".")) for name, knob in all_knobs().items() if knob.kind in ("text", "ints or text")}
    assert text - {*jobs.PATHS, *jobs.MODELS, ("data", "lengths")} == OPENS_NOTHING
    assert {*jobs.PATHS, *jobs.MODELS, ("data", "lengths")} <= text


OPENS_NOTHING: set[tuple[str, ...]] = {("hardware", "gpu"), ("hardware", "interconnect"), ("hardware", "country")}
"""Names that are looked up in the package's own tables."""


@pytest.mark.parametrize("given", ["alpaca", "lognormal(median=300, p90=1200)", "512,600", "constant(5)"])
def test_lengths(given: str) -> None:
    jobs.require_known_lengths(given)


@pytest.mark.parametrize("given", ["/etc/passwd", "lengths.txt", "alpaca.json", "f(/etc/passwd)"])
def test_lengths_are_never_a_file(given: str) -> None:
    with pytest.raises(UsageError, match=r"data\.lengths"):
        jobs.require_known_lengths(given)


@pytest.mark.parametrize(
    ("given", "name"),
    [("../../etc/x.yaml", "x.yaml"), ("C:\\a b\\Own File.YML", "Own-File.yml"), ("..yaml", "upload.yaml"),
     ("\x00\n.json", "upload.json"), ("x" * 250 + ".sh", "x" * 60 + ".sh")],
)  # fmt: skip
def test_names_of_uploads(given: str, name: str) -> None:
    assert questions.upload_name(given, questions.UPLOADS) == name


def test_an_upload_of_another_kind() -> None:
    with pytest.raises(UsageError, match="ends in"):
        questions.upload_name("x.pkl", questions.UPLOADS)


def test_the_network_is_not_asked() -> None:
    with pytest.raises(UsageError, match="no request leaves"):
        questions.require_no_network({"available": True})
    assert "available" not in PLAN


CONFINED = """
import os, sys, json, socket, subprocess
from tunecast.web.workers.confined import confine
own, other = sys.argv[1:3]
os.chdir(own)
confine(own)
def how(ask):
    try:
        ask()
        return "done"
    except OSError as error:
        return type(error).__name__
link = "link"
print(json.dumps([how(ask) for ask in (
    lambda: open("mine", "w").close(), lambda: os.stat("mine"), lambda: __import__("tunecast.units"),
    lambda: open(other), lambda: os.stat(other), lambda: os.lstat(other), lambda: os.listdir(os.path.dirname(other)),
    lambda: open(own + "/../" + os.path.relpath(other, os.path.dirname(own))), lambda: open(link),
    lambda: os.stat(link),
    lambda: open("/etc/passwd"), lambda: os.unlink(other), lambda: os.rename("mine", other), lambda: os.mkdir("/tmp/x"),
    lambda: os.open(other, os.O_RDONLY), lambda: open(os.fsencode(other)), lambda: os.access(other, os.R_OK) or 1 / 0,
    lambda: socket.create_connection(("127.0.0.1", 1)), lambda: socket.getaddrinfo("example.org", 80),
    lambda: subprocess.run(["true"]), lambda: os.system("true"),
)]))
"""


def test_a_worker_sees_its_own_folder_and_nothing_else(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other" / "secret"
    own.mkdir()
    other.parent.mkdir()
    other.write_text("secret")
    (own / "link").symlink_to(other)
    source = str(Path(questions.__file__).parents[3])
    told = subprocess.run(
        [sys.executable, "-P", "-c", CONFINED, str(own), str(other)],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": source},
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found[:3] == ["done"] * 3
    assert found[3:17] == ["Elsewhere"] * 14
    assert found[17:] == ["PermissionError"] * 4
    assert other.read_text() == "secret"


# ------------------------------------------------------------------------------------------ what is declared


def test_what_breaks_a_declaration() -> None:
    schema = body({"n": {"type": "integer", "minimum": 1}, "s": {"type": ["string", "null"], "maxLength": 2}}, "n")
    assert not list(problems(schema, {"n": 1, "s": None}))
    wrong = {"n": True, "s": "abc", "x": 1}
    assert [place for place, _ in problems(schema, wrong)] == ["n", "s", "x"]
    assert [place for place, _ in problems(schema, {})] == ["n"]
    assert [place for place, _ in problems(schema, {"n": 0})] == ["n"]
    assert list(problems(schema, [])) == [("", "got []; allowed: object")]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
def test_every_address_is_answered_and_published(endpoint: Any) -> None:
    assert endpoint.question in (stored.QUESTIONS if endpoint.work in OF_STORE else questions.QUESTIONS)
    told = document()["paths"][endpoint.path][endpoint.method.lower()]
    assert told["operationId"] == endpoint.question and "422" in told["responses"]
    json.dumps(told)


def test_every_question_has_an_address() -> None:
    of_store = {endpoint.question for endpoint in ENDPOINTS if endpoint.work in OF_STORE}
    assert set(stored.QUESTIONS) == of_store
    assert set(questions.QUESTIONS) == {endpoint.question for endpoint in ENDPOINTS} - of_store
    assert set(exports.KINDS) == set(KINDS)


def test_the_job_of_a_request_has_every_field() -> None:
    schema = job_schema()
    for dotted in all_knobs():
        place = schema
        for name in dotted.split("."):
            place = place["properties"][name]


def test_queries_by_their_kinds() -> None:
    offers = next(each for each in ENDPOINTS if each.question == "offers")
    pairs = [
        ("eu", "true"),
        ("gpus", "8"),
        ("max_usd", "2.5"),
        ("country", "DE"),
        ("country", "FI"),
        ("q", "8"),
        ("x", "1"),
    ]
    assert query_values(offers, pairs) == {
        "eu": True, "gpus": 8, "max_usd": 2.5, "country": ["DE", "FI"], "q": "8", "x": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given", [b"", b"[1]", b"{", b'{"job": 1}', b'{"job": {}, "x": 1}', b"\xff", b'{"job": {}, "job": {}}', b"NaN",
              b'{"job":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"job": {"a": ' + b"9" * 5000 + b"}}"],
)  # fmt: skip
def test_a_bad_request(given: bytes) -> None:
    with pytest.raises(questions.BadRequest) as raised:
        questions.given_of("predict", given)
    assert questions.refusal(raised.value)["status"] == 400


def test_refusals_are_those_of_the_command_line() -> None:
    error = UsageError.at("seq_len", "got 0")
    assert questions.refusal(error) == {
        "status": 422, "error": {"code": "usage", "field": "seq_len", "message": "seq_len: got 0"},
    }  # fmt: skip
    assert questions.refusal(MemoryError())["status"] == 422
    assert questions.refusal(KeyError("x"))["status"] == 500, "a fault of ours is told as one"
