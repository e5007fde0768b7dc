"""`tunecast serve`, a real one: what it answers, and what becomes of requests that mean it harm."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tunecast
from tunecast.cli.main import main
from tunecast.web.safety import HEADERS, RateLimit, access_for

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        find_spec("starlette") is None or find_spec("uvicorn") is None, reason="needs starlette and uvicorn"
    ),
]
SOURCE = Path(tunecast.__file__).parents[1]
JOB: dict[str, Any] = {"model": "llama-3.2-1b", "method": "lora", "hardware": {"gpu": "rtx-4090"}}
JSON = {"Content-Type": "application/json"}
TOKEN = "0123456789abcdef" * 4
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 4, "intermediate_size": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code


class Served:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    def post(self, path: str, given: Any, **headers: str) -> Answer:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, json.dumps(given).encode(), {**JSON, **more})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def raw(self, content: bytes) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        found.sendall(content)
        return found

    def workers(self) -> set[int]:
        """Processes below the server's own."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                told = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if told[0] != "Z":
                parents[int(path.parent.name)] = int(told[1])
        found, rest = set(), [self.process.pid]
        while rest:
            above = rest.pop()
            below = {child for child, parent in parents.items() if parent == above}
            found |= below
            rest += below
        return found


def serving(*words: str, stdin: int | None = None) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tunecast", "serve", "--no-browser", "--port", "0", *words],
        stdin=stdin, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        yield Served(process)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    yield from serving()


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


# ------------------------------------------------------------------------------------------------- what it answers


def test_it_says_where_it_is_and_answers(served: Served) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    assert served.get("/api/health").json == {"status": "ok", "version": tunecast.__version__}


def test_a_prediction_is_what_the_command_prints(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "predict", "llama-3.2-1b", "--method", "lora", "--gpu", "rtx-4090")
    answer = served.post("/api/predict", {"job": JOB})
    assert answer.status == 200 and answer.json == told


def test_every_card(served: Served) -> None:
    found = served.post("/api/cards", {"job": JOB}).json
    own = next(card for card in found["cards"] if card["gpu"] == "rtx-4090")
    told = served.post("/api/predict", {"job": JOB}).json
    assert found["schema"] == "tunecast.cards/1" and len(found["cards"]) > 90
    assert (own["capacity_bytes"], own["needs_bytes"]) == (told["capacity_bytes"], told["smallest_capacity_bytes"])
    assert own["verdict"] == {(True, True): "fits", (True, False): "may not fit"}.get(
        (told["fits"], told["fits_surely"]), "does not fit"
    )
    assert {card["verdict"] for card in found["cards"]} >= {"fits", "does not fit", "refused"}


def test_a_plan_comes_as_events(served: Served) -> None:
    job = {**JOB, "data": {"samples": 2000}, "hardware": None}
    answer = served.post("/api/plan", {"job": job, "gpu": "h100-sxm-80gb", "gpus": 1, "as_of": "2026-11-15"})
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"
    events = [
        event.partition("\ndata: ") for event in answer.body.decode().removeprefix("event: ").split("\n\nevent: ")
    ]
    names = [name for name, _, _ in events]
    assert names[-1] == "plan" and {"progress", "choice"} <= set(names)
    plan, choices = json.loads(events[-1][2]), [json.loads(data) for name, _, data in events if name == "choice"]
    own = tunecast.plan(
        {**JOB, "data": {"samples": 2000}, "hardware": None}, gpu="h100-sxm-80gb", gpus=1, as_of="2026-11-15"
    )
    expected = json.loads(json.dumps(own.to_dict()))
    plan["searched"].pop("seconds"), expected["searched"].pop("seconds")
    assert plan == expected
    assert choices[-1]["hardware"] == "1 x h100-sxm-80gb"


def test_a_plan_that_is_refused_has_a_status(served: Served) -> None:
    answer = served.post("/api/plan", {"job": JOB, "country": "atlantis"})
    assert answer.status == 422 and answer.headers["content-type"] == "application/json"


def test_fit_and_compare(served: Served) -> None:
    tight = {**JOB, "micro_batch": 8, "seq_len": 4096, "hardware": {"gpu": "rtx-3060"}}
    found = served.post("/api/fit", {"job": tight}).json
    assert found["schema"] == "tunecast.fit/1" and found["chosen"]["fits"]
    other = {**JOB, "lora": {"rank": 64}}
    assert served.post("/api/compare", {"job": JOB, "other": other}).json["schema"] == "tunecast.compare/1"


@pytest.mark.parametrize(
    ("kind", "begins"),
    [("yaml", "model: llama-3.2-1b\n"), ("command", "tunecast predict llama-3.2-1b --method lora"),
     ("python", "import tunecast\n"), ("slurm", "#!/bin/sh\n"), ("skypilot", "#!/bin/sh\n")],
)  # fmt: skip
def test_exports(served: Served, kind: str, begins: str) -> None:
    answer = served.post("/api/export", {"job": JOB, "as": kind})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    assert answer.body.decode().startswith(begins)
    assert answer.headers["content-disposition"].startswith("attachment; filename=")


def test_an_exported_command_and_snippet_say_the_same_job(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    job = {**JOB, "seq_len": 512, "kernels": ["liger"], "gradient_checkpointing": False, "lora": {"rank": 4}}
    told = served.post("/api/predict", {"job": job}).json
    command = served.post("/api/export", {"job": job, "as": "command"}).body.decode().split()
    assert printed(capsys, *command[1:]) == told
    names: dict[str, Any] = {}
    exec(served.post("/api/export", {"job": job, "as": "python"}).body.decode(), names)
    assert json.loads(json.dumps(names["prediction"].to_dict())) == told


def test_a_report(served: Served) -> None:
    answer = served.post("/api/export", {"job": JOB, "as": "report"})
    assert answer.body.startswith(b"<!doctype html>") and answer.headers["content-type"].startswith("text/plain")


def test_a_config_that_was_pasted(served: Served) -> None:
    answer = served.post("/api/predict", {"job": {**JOB, "model": "my own"}, "model_config": CONFIG})
    assert answer.status == 200
    assert "architecture: config.json" in answer.json["assumptions"]
    for name in ({"model": {}}, {"model": None}):
        assert served.post("/api/export", {"job": {**JOB, **name}, "model_config": CONFIG, "as": "yaml"}).status == 422
    wrong = served.post("/api/predict", {"job": JOB, "model_config": {**CONFIG, "hidden_size": -1}})
    assert wrong.status == 422 and "hidden_size" in wrong.json["error"]["message"]


def test_lists(served: Served) -> None:
    assert [each["name"] for each in served.get("/api/models?q=llama-3.2-1b").json] == ["llama-3.2-1b"]
    assert served.get("/api/models?q=nothing-of-that-name").json == []
    assert served.get("/api/gpus?q=rtx-4090").json["gpus"][0]["name"] == "rtx-4090"
    assert served.get("/api/offers?q=h100&eu=true").json["schema"] == "tunecast.offers/1"
    assert served.get("/api/runs").json == []
    assert served.get("/api/openapi.json").json["openapi"] == "3.1.0"


def test_what_is_published_is_what_is_routed() -> None:
    """Neither an address that nobody reads of, nor one that is not there."""
    from tunecast.web.api.openapi import document
    from tunecast.web.http.app import application
    from tunecast.web.safety import RateLimit, access_for

    nothing: Any = None  # nobody asks
    routes = application(nothing, nothing, access_for("127.0.0.1", None, ()), RateLimit()).app.routes
    published = {(path, method.upper()) for path, methods in document()["paths"].items() for method in methods}
    api = [each for each in routes if each.path.startswith("/api")]
    assert published == {(each.path, way) for each in api for way in each.methods - {"HEAD"}}


def test_an_upload_is_understood(served: Served) -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nlora_r: 8\nmicro_batch_size: 2\nsequence_len: 2048\n"
    found = served.post("/api/read", {"name": "mine/own.yml", "text": text}).json
    assert found["framework"] == "axolotl" and found["job"]["lora"]["rank"] == 8
    assert found["from"]["lora.rank"] == {"file": "own.yml", "line": 3, "key": "lora_r"}
    data = served.post("/api/data", {"name": "d.jsonl", "text": '{"text": "some words"}\n' * 3}).json
    assert data["samples"] == 3


OWN_FILE = """# how we train
base_model: meta-llama/Llama-3.2-1B  # not the instruct one
adapter: lora
lora_r: 8
lora_target_linear: true
micro_batch_size: 2
sequence_len: 2048
"""


def test_a_dropped_file_is_patched_in_its_own_words(served: Served) -> None:
    job = served.post("/api/read", {"name": "own.yml", "text": OWN_FILE}).json["job"]
    changed = {**job, "micro_batch": 1, "lora": {**job["lora"], "rank": 32}, "hardware": {"gpu": "rtx-4090", "gpus": 2}}
    found = served.post("/api/patch", {"job": changed, "name": "own.yml", "text": OWN_FILE}).json
    assert found["text"] == OWN_FILE.replace("lora_r: 8", "lora_r: 32").replace("size: 2", "size: 1")
    assert found["changes"] == {"lora.rank": 32, "micro_batch": 1}
    assert found["beside"] == {"hardware.gpu": "rtx-4090", "hardware.gpus": 2}
    assert found["flags"] == "--gpu rtx-4090 --gpus 2"
    assert found["diff"].startswith("--- own.yml\n+++ own.yml\n") and "+lora_r: 32\n" in found["diff"]
    again = served.post("/api/read", {"name": "own.yml", "text": found["text"]}).json["job"]
    assert (again["lora"]["rank"], again["micro_batch"]) == (32, 1)


def test_another_model_goes_into_the_file_by_its_hub_id(served: Served) -> None:
    job = served.post("/api/read", {"name": "own.yml", "text": OWN_FILE}).json["job"]
    job["hardware"] = {"gpu": "rtx-4090"}
    for name, hub in (("qwen2.5-7b", "Qwen/Qwen2.5-7B"), ("llama-3.2-1b", "meta-llama/Llama-3.2-1B")):
        found = served.post("/api/patch", {"job": {**job, "model": name}, "name": "own.yml", "text": OWN_FILE}).json
        assert found["text"] == OWN_FILE.replace("meta-llama/Llama-3.2-1B", hub)
    pasted = {"job": {**job, "model": "my own"}, "model_config": CONFIG, "name": "own.yml", "text": OWN_FILE}
    assert served.post("/api/patch", pasted).json["text"] == OWN_FILE


def test_what_a_file_cannot_say_stays_beside_it(served: Served) -> None:
    job = served.post("/api/read", {"name": "own.yml", "text": OWN_FILE}).json["job"]
    job |= {"hardware": {"gpu": "rtx-4090"}, "lora": {**job["lora"], "targets": ["q_proj", "v_proj"]}}
    refused = served.post("/api/patch", {"job": job, "name": "own.yml", "text": OWN_FILE})
    assert refused.status == 422 and "lora.targets" in refused.json["error"]["message"]
    mixed = {"job": {**job, "seq_len": 512}, "name": "own.yml", "text": OWN_FILE}
    found = served.post("/api/patch", mixed).json
    assert found["changes"] == {"seq_len": 512} and found["beside"]["lora.targets"] == ["q_proj", "v_proj"]
    script = {"job": job, "name": "train.sh", "text": "torchrun train.py --model_name_or_path llama-3.2-1b\n"}
    assert served.post("/api/patch", script).status == 422


# ------------------------------------------------------------------------------------------------- the page


def test_the_page_and_its_headers(served: Served) -> None:
    answer = served.get("/")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    for name, text in HEADERS.items():
        if name != "cache-control":
            assert answer.headers[name] == text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0], "no script is inline"
    text = answer.body.decode()
    assert "<script>" not in text and " onload=" not in text and "http://" not in text and "https://" not in text


@pytest.mark.parametrize(
    "path",
    ["/../safety.py", "/..%2fsafety.py", "/%2e%2e/safety.py", "//etc/passwd", "/static/index.html", "/index.html/..",
     "/assets/../../safety.py", "/%00", "/.git/config", "/..\\safety.py", "/api/../../etc/passwd", "/api/"],
)  # fmt: skip
def test_no_path_leads_elsewhere(served: Served, path: str) -> None:
    """As a browser would never send it: the path as it is."""
    with served.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()) as connection:
        answer = _all(connection)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.1 307")), answer[:200]
    assert b"Denial" not in answer and b"root:" not in answer


def _all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------- attacks


def test_dns_rebinding(served: Served) -> None:
    for path in ("/", "/api/health", "/api/models"):
        answer = served.get(path, Host=f"evil.example:{served.port}")
        assert answer.status == 403 and answer.code == "host"
        assert "access-control-allow-origin" not in answer.headers


def test_another_site_can_neither_ask_nor_read(served: Served) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
        assert served.post("/api/predict", {"job": JOB}, **headers).status == 403
    plain = served.ask("POST", "/api/predict", json.dumps({"job": JOB}).encode(), {"Content-Type": "text/plain"})
    assert plain.status == 415, "what a form of another site can send without asking first"
    asked = served.ask("OPTIONS", "/api/predict", None, {"Origin": "http://evil.example"})
    assert asked.status == 403 and "access-control-allow-origin" not in asked.headers
    own = served.post("/api/predict", {"job": JOB}, Origin=f"http://127.0.0.1:{served.port}")
    assert own.status == 200 and "access-control-allow-origin" not in own.headers


def test_bodies_that_are_too_large(served: Served) -> None:
    assert served.ask("POST", "/api/predict", b"x" * (2 << 20), JSON).code == "too_large"
    with served.raw(
        b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999999999999999\r\n\r\n"
    ) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    with served.raw(
        b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    ) as connection:  # no length is said
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_compressed_body_is_not_unpacked(served: Served) -> None:
    bomb = gzip.compress(b" " * (50 << 20))
    answer = served.ask("POST", "/api/predict", bomb, {**JSON, "Content-Encoding": "gzip"})
    assert answer.status == 415 and answer.code == "content_encoding"


@pytest.mark.parametrize(
    "body",
    [b"[" * 400_000, b'{"job":' * 100_000, b'{"job": {"model": "' + b"x" * 500_000 + b'"}}', b"\xff\xfe", b"", b"null",
     b'{"job": {"model": "llama-3.2-1b", "lengths": [' + b"1," * 150_000 + b"1]}}",
     b'{"job": {"model": "llama-3.2-1b", "seq_len": 1e400}}', b'{"job": {"model": "\\ud800"}}',
     b'{"job": {"model": "llama-3.2-1b", "micro_batch": 1000000, "seq_len": 10000000}}',
     b'{"job": {"model": "llama-3.2-1b", "__class__": {}}}'],
)  # fmt: skip
def test_hostile_json(served: Served, body: bytes) -> None:
    answer = served.ask("POST", "/api/predict", body, JSON)
    assert 400 <= answer.status < 500, answer.body[:300]
    assert set(answer.json["error"]) == {"code", "field", "message"}


def test_files_of_the_server_are_neither_read_nor_found(served: Served, tmp_path: Path) -> None:
    """A trainer's file may name others. What is there and what is not looks the same, and nothing of it comes out."""
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "secret": "s3cret"}))
    (tmp_path / "data.jsonl").write_text('{"text": "s3cret"}\n')
    told = []
    for folder in (tmp_path, tmp_path / "none"):
        text = (
            "base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nmicro_batch_size: 1\nsequence_len: 512\n"
            f"deepspeed: {folder}/ds.json\ndatasets:\n  - path: {folder}/data.jsonl\n    type: completion\n"
        )
        answer = served.post("/api/read", {"name": "a.yml", "text": text})
        assert answer.status == 200 and b"s3cret" not in answer.body
        told.append(answer.body.replace(str(folder).encode(), b"FOLDER"))
    assert told[0] == told[1]
    for job in ({"model": str(tmp_path)}, {**JOB, "data": {"path": str(tmp_path / "data.jsonl")}}):
        assert served.post("/api/predict", {"job": job}).status == 422


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n" + "d: [*c]\n" * 50),
     ("a.yaml", "!!python/object/apply:os.system [id]"), ("a.yaml", "[" * 50_000), ("a.json", "[" * 500_000),
     ("a.py", "import os\nos.system('touch /tmp/tunecast-was-here')\n"),
     ("a.yaml", "\x00\x01"), ("a.yaml", ""), ("a.sh", "accelerate launch --config_file /etc/passwd train.py\n"),
     ("a.json", '{"a":' * 10), ("a.yaml", "- 1\n" * 60_000), ("../../a.yaml", "base_model: x\n"), ("a.exe", "x")],
)  # fmt: skip
def test_hostile_uploads(served: Served, name: str, text: str) -> None:
    answer = served.post("/api/read", {"name": name, "text": text})
    assert answer.status == 200 or 400 <= answer.status < 500, answer.body[:300]
    assert not os.path.exists("/tmp/tunecast-was-here")


@pytest.mark.parametrize("extra", [{"X-Much": "a" * 17_000}, {f"X-{number}": "a" * 500 for number in range(34)}])
def test_headers_that_are_too_large_are_refused_though_they_come_at_once(served: Served, extra: dict[str, str]) -> None:
    for path in ("/", "/api/health"):
        assert served.ask("GET", path, None, extra).status == 431
    assert served.get("/?" + "a" * 17_000).status == 431


def test_headers_that_never_end_are_given_up(served: Served) -> None:
    """Slowloris: uvicorn itself would wait for ever. Other clients are answered meanwhile."""
    slow = [served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") for _ in range(50)]
    try:
        assert served.get("/api/health").status == 200
        for connection in slow:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b"", "closed without an answer"
    finally:
        for connection in slow:
            connection.close()
    assert served.get("/api/health").status == 200


def test_a_plan_ends_with_its_client_and_stands_in_nobodys_way(served: Served) -> None:
    served.post("/api/predict", {"job": JOB})
    before = served.workers()
    head = "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    body = json.dumps({"job": {"model": "llama-3.1-8b", "method": "full", "data": {"tokens": 10**9}}}).encode()
    plans = [served.raw(head.format(len(body)).encode() + body) for _ in range(6)]
    assert plans[0].recv(12) == b"HTTP/1.1 200"
    running = served.workers() - before
    cores = len(os.sched_getaffinity(0))
    assert 1 <= len(running) <= min(cores, 8) + 1, "the rest waits its turn"
    assert served.post("/api/predict", {"job": JOB}).status == 200
    asked = {"job": JOB, "as": "yaml"}
    assert served.post("/api/export", asked).status == 200, "it waits behind no plan"
    assert served.post("/api/read", {"name": "job.yaml", "text": "model: gpt2"}).status == 200, "nor does an upload"
    assert served.workers() & running, "which go on"
    for plan in plans:
        plan.close()
    while served.workers() & running:
        time.sleep(0.02)


def test_many_plans_at_once_are_told_to_wait(served: Served) -> None:
    head = "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    body = json.dumps({"job": {"model": "llama-3.1-8b", "method": "full", "data": {"tokens": 10**9}}}).encode()
    plans = [served.raw(head.format(len(body)).encode() + body) for _ in range(60)]
    try:
        first = plans[-1].recv(12)
        assert first == b"HTTP/1.1 429"
    finally:
        for plan in plans:
            plan.close()
    assert served.post("/api/predict", {"job": JOB}).status == 200


def test_a_worker_that_dies_is_replaced(served: Served) -> None:
    """As where the kernel ends it for want of memory."""
    served.post("/api/predict", {"job": JOB})
    nursery = {
        int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1]): each for each in served.workers()
    }
    keeper = nursery[served.process.pid]
    for each in served.workers() - {keeper}:
        os.kill(each, 9)
    while served.workers() - {keeper}:
        time.sleep(0.02)
    answers = [served.post("/api/predict", {"job": JOB}).status for _ in range(4)]
    assert answers[-1] == 200 and set(answers) <= {200, 422}
    os.kill(keeper, 9)
    while keeper in served.workers():
        time.sleep(0.02)
    answers = [served.post("/api/predict", {"job": JOB}).status for _ in range(4)]
    assert answers[-1] == 200


def test_other_methods_and_addresses(served: Served) -> None:
    assert served.get("/api/predict").status == 405
    assert served.post("/api/models", {}).status == 405
    assert served.get("/api/nothing").status == 404
    assert served.get("/api/models?unknown=1").status == 400
    assert served.get("/api/offers?available=true").status == 400


def test_a_token_is_asked_of_everybody(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    for served in serving("--token-file", str(path)):
        assert served.get("/").status == 200 and served.get("/api/health").status == 200
        denied = served.get("/api/models")
        assert denied.status == 401 and denied.headers["www-authenticate"] == "Bearer"
        assert served.get("/api/models", Authorization=f"Bearer {TOKEN}").status == 200
        assert served.get("/api/models", Authorization=f"Bearer {0:064}").status == 401


def test_guessing_a_token_is_slow() -> None:
    """By a clock that stands still: how many guesses a busy machine brings in a second is not looked at."""
    from tunecast.web.http.app import Guard

    guard = Guard(None, access_for("127.0.0.1", TOKEN, ()), RateLimit(clock=lambda: 0.0), {})
    scope = {"client": ("10.0.0.9", 1), "raw_path": b"", "query_string": b"", "headers": [], "path": "/api/models",
             "method": "GET"}  # fmt: skip
    given = ({"host": ["localhost"], "authorization": [f"Bearer {n:064}"]} for n in range(20))
    statuses = [guard._refusal(scope, headers).status_code for headers in given]  # type: ignore[union-attr]
    assert statuses == [401] * 10 + [429] * 10


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is ignored, as under nohup, is so by what is started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_editor_frames_the_page_and_it_ends_with_who_started_it() -> None:
    words = ["--framed-by", "http://127.0.0.1:8080", "--ends-with-stdin"]
    for served in serving(*words, stdin=subprocess.PIPE):
        answer = served.get("/")
        assert answer.headers["content-security-policy"].endswith("; frame-ancestors http://127.0.0.1:8080")
        assert "x-frame-options" not in answer.headers
        assert served.get("/api/models", Origin="http://127.0.0.1:8080", Sec_Fetch_Site="cross-site").status == 403
        assert served.process.stdin is not None
        served.process.stdin.close()
        assert served.process.wait(300) == 130, "as when it is interrupted"


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--host", "0.0.0.0"], "--token-file"), (["--framed-by", "*"], "--framed-by"), (["--port", "70000"], "--port"),
     (["--token-file", "/none"], "No such file"), (["--host", "192.0.2.1", "--token-file", "TOKEN"], "To fix")],
)  # fmt: skip
def test_what_it_does_not_start_with(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    words = [str(path) if word == "TOKEN" else word for word in words]
    assert main(["serve", "--no-browser", *words]) in (2, 5)
    assert told in capsys.readouterr().err
