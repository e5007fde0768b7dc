"""The Hub, played by a server on this machine that is good, slow, broken or hostile."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved
from tunecast.job import hub
from tunecast.job.model import resolve_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
TOKEN = "hf_secretsecretsecret"


class Server(ThreadingHTTPServer):
    """Answers a path with what `pages` has for it: bytes, (status, headers), or a function of the request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.pages_sent_whole = 0
        """Of those that take a minute."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        page = self.server.pages.get(self.path, (404, {"X-Error-Code": "EntryNotFound"}))
        if callable(page):
            page(self)
        elif isinstance(page, tuple):
            self.answer(b"", *page)
        else:
            self.ranged(page)

    def ranged(self, content: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(content)
            return
        last = int(wanted.rpartition("-")[2])
        part = content[: last + 1]
        self.answer(part, 206, {"Content-Range": f"bytes 0-{len(part) - 1}/{len(content)}"})

    def answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


@pytest.fixture
def other(server: Server) -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token, cache or proxy of whoever runs the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
                 "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_DOWNLOAD_TIMEOUT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", server.url)


def page(name: str, file: str = "config.json", revision: str = "main") -> str:
    return f"/{name}/resolve/{revision}/{file}"


def stored(*shapes: tuple[int, ...], dtype: str = "BF16", padding: int = 0) -> bytes:
    """A safetensors file's header, with bytes after it that must not be needed."""
    tensors, at = {}, 0
    for i, shape in enumerate(shapes):
        size = 2
        for n in shape:
            size *= n
        tensors[f"t{i}"] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(tensors).encode() + b" " * padding
    return struct.pack("<Q", len(header)) + header + b"\0" * 1000


def refusal(name: str = "org/m") -> str:
    with pytest.raises(NotResolved) as caught:
        resolve_model(name)
    assert caught.value.exit_code == 5
    assert TOKEN not in caught.value.message
    return caught.value.message


def test_a_model_with_one_file(server):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    server.pages[page("org/m", "model.safetensors")] = stored((1000, 64), (64,))
    model = resolve_model("org/m")
    assert (model.hidden_size, model.layers) == (64, 2)
    assert model.source == f"{server.url}/org/m/resolve/main/config.json"
    assert model.weights is not None
    assert (model.weights.values, model.weights.by_dtype) == (64_064, (("BF16", 64_064),))
    assert model.notes == ()
    # nothing but the configuration, the index that is not there, and the first bytes of the weights
    assert [path.rpartition("/")[2] for path, _ in server.asked] == [
        "config.json", "model.safetensors.index.json", "model.safetensors",
    ]  # fmt: skip
    assert server.asked[-1][1]["Range"] == f"bytes=0-{hub.FIRST_BYTES - 1}"
    assert all("Authorization" not in headers for _, headers in server.asked)


def test_a_model_in_shards_and_a_header_longer_than_the_first_bytes(server):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-2.safetensors"}}
    server.pages[page("org/m", "model.safetensors.index.json")] = json.dumps(index).encode()
    server.pages[page("org/m", "x-1.safetensors")] = stored((10,))
    server.pages[page("org/m", "x-2.safetensors")] = stored((7,), padding=hub.FIRST_BYTES)
    weights = resolve_model("org/m").weights
    assert weights is not None and weights.values == 17
    ranges = [headers["Range"] for path, headers in server.asked if path.endswith("x-2.safetensors")]
    assert len(ranges) == 2


def test_a_server_that_ignores_ranges_is_read_no_further_than_needed(server):
    sent = []

    def whole(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(10**12))
        request.end_headers()
        request.wfile.write(stored((3,)))
        try:
            for _ in range(200):
                request.wfile.write(b"\0" * 2**20)
                sent.append(2**20)
        except OSError:
            pass

    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    server.pages[page("org/m", "model.safetensors")] = whole
    weights = resolve_model("org/m").weights
    assert weights is not None and weights.values == 3
    assert sum(sent) < 100 * 2**20


def test_a_model_without_safetensors(server):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    model = resolve_model("org/m")
    assert (model.weights, model.notes) == (None, ())


def test_a_revision(server):
    server.pages[page("org/m", revision="v1%2Fx")] = json.dumps(CONFIG).encode()
    assert resolve_model("org/m@v1/x").hidden_size == 64


def test_the_token_goes_to_the_hub_and_nowhere_else(server, other, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    other.pages["/moved"] = json.dumps(CONFIG).encode()
    server.pages[page("org/m")] = (302, {"Location": f"{other.url}/moved"})
    assert resolve_model("org/m").hidden_size == 64
    assert server.asked[0][1]["Authorization"] == f"Bearer {TOKEN}"
    assert other.asked and all("Authorization" not in headers for _, headers in other.asked)


def test_the_token_stays_with_a_model_that_was_renamed(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.pages[page("old/m")] = (307, {"Location": page("new/m")})
    server.pages[page("new/m")] = json.dumps(CONFIG).encode()
    assert resolve_model("old/m").hidden_size == 64
    assert server.asked[1] == (page("new/m"), server.asked[1][1])
    assert server.asked[1][1]["Authorization"] == f"Bearer {TOKEN}"


def test_the_token_file_and_how_to_do_without(server, tmp_path, monkeypatch):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(f"{TOKEN}\n")
    resolve_model("org/m")
    assert server.asked[0][1]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(hub.settings())
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert hub.settings().token is None


@pytest.mark.parametrize("token", [f"{TOKEN}\r\nX-Evil: 1", f"{TOKEN} x", "hf_ä"])
def test_a_token_that_is_none_is_not_quoted(token, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", token)
    assert refusal() == "HF_TOKEN: holds characters that no token has"


@pytest.mark.parametrize(
    ("reply", "token", "message"),
    [
        ((404, {"X-Error-Code": "RepoNotFound"}), None, "org/m does not exist"),
        ((404, {"X-Error-Code": "EntryNotFound"}), None, "org/m has no config.json"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), None, "org/m has no revision main"),
        ((404, {}), None, "org/m does not exist, or has no config.json"),
        ((401, {"X-Error-Code": "RepoNotFound"}), None, "or may not be read; set HF_TOKEN if it is private"),
        ((403, {}), TOKEN, "or may not be read; this token may not read it"),
        ((401, {"X-Error-Code": "GatedRepo"}), None, "org/m: gated; accept its terms there and set HF_TOKEN"),
        ((403, {"X-Error-Code": "GatedRepo"}), TOKEN, "org/m: gated; accept its terms there ("),
        ((429, {}), None, "answered 429; try again later"),
        ((500, {"X-Error-Code": "\x1b[31m"}), None, "answered 500; try again later"),
        ((302, {"Location": page("org/m")}), None, "redirects that lead nowhere"),
        ((302, {"Location": "file:///etc/passwd"}), None, "redirects that lead nowhere"),
        ((302, {"Location": "ftp://127.0.0.1/x"}), None, "a redirect away from https"),
    ],
)
def test_refusals_say_what_to_do(server, monkeypatch, reply, token, message):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    server.pages[page("org/m")] = reply
    assert message in refusal()


def cut(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"model_type"')


def endless(request: Handler) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" " * 65536)
    except OSError:
        pass


def declared_huge(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(2**62))
    request.end_headers()


def no_http(request: Handler) -> None:
    request.wfile.write(b"\x1b[31m garbage\r\n\r\n")


def long_header(request: Handler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n{}")


def bad_length(request: Handler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")


def hang_up(request: Handler) -> None:
    request.connection.close()


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (cut, "cut off after 13 of 1000 bytes"),
        (endless, "more than 1048576 bytes long"),
        (declared_huge, "4611686018427387904 bytes long; at most 1048576 are read"),
        (no_http, "cannot be read (BadStatusLine)"),
        (long_header, "cannot be read (LineTooLong)"),
        (bad_length, "not a mapping|not JSON|cannot be read|got {}|missing"),
        (hang_up, "cannot be reached|cannot be read"),
    ],
)
def test_broken_and_hostile_replies(server, behave, message):
    server.pages[page("org/m")] = behave
    told = refusal()
    assert any(part in told for part in message.split("|"))
    assert "\x1b" not in told


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"\xff\xfe", b'{"model_type": "llama"}', b"[" * 100_000])
def test_replies_that_are_no_configuration(server, content):
    server.pages[page("org/m")] = content
    assert f"{server.url}/org/m/resolve/main/config.json: " in refusal()


def drip(first: bytes, pause_s: float) -> Callable[[Handler], None]:
    def behave(request: Handler) -> None:
        try:
            request.wfile.write(first)
            for _ in range(600):
                time.sleep(pause_s)
                request.wfile.write(b"a")
                request.wfile.flush()
            request.server.pages_sent_whole += 1
        except OSError:
            pass

    return behave


@pytest.mark.whole
@pytest.mark.parametrize(
    "behave",
    [
        lambda request: time.sleep(30),
        drip(b"HTTP/1.1 200 OK\r\nX-Slow: ", 0.1),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", 0.1),
    ],
    ids=["silent", "slow header", "slow body"],
)
def test_slow_servers_are_left(server, monkeypatch, behave):
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    server.pages[page("org/m")] = behave
    assert "no answer" in refusal()
    assert not server.pages_sent_whole


def test_no_server_at_all(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    told = refusal("org/llama-3.1-8b")
    assert "cannot be reached" in told
    assert "without a network, give a path to its config.json" in told
    assert told.endswith("; nearest: llama-3.1-8b")


def test_a_bundled_copy_stands_in_for_the_hub_and_says_so(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    model = resolve_model("meta-llama/Llama-3.1-8B")
    assert (model.name, model.layers) == ("meta-llama/Llama-3.1-8B", 32)
    [note] = model.notes
    assert "the bundled llama-3.1-8b stands in for it" in note
    # but where the Hub has it, the Hub is right
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.pages[page("meta-llama/Llama-3.1-8B")] = json.dumps(CONFIG).encode()
    assert resolve_model("meta-llama/Llama-3.1-8B").layers == 2


@pytest.mark.parametrize("value", ["1", "ON", "true", "Yes"])
def test_offline_asks_nobody(server, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    assert "offline, and not in the local cache" in refusal()
    with pytest.raises(NotResolved):
        resolve_model("org/m", offline=True)
    assert server.asked == []
    assert resolve_model("org/m", offline=False).hidden_size == 64


def cached(cache: Path, name: str = "models--org--m", commit: str = "abc123") -> Path:
    (cache / name / "refs").mkdir(parents=True)
    (cache / name / "refs" / "main").write_text(commit)
    folder = cache / name / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 128}))
    return folder


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_the_local_cache_comes_first(server, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    folder = cached(tmp_path / "elsewhere" / ("hub" if variable == "HF_HOME" else ""))
    (folder / "model.safetensors").write_bytes(stored((5,)))
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    model = resolve_model("org/m")
    assert (model.hidden_size, model.source) == (128, str(folder / "config.json"))
    assert model.weights is not None and model.weights.values == 5
    assert resolve_model("org/m@abc123", offline=True).hidden_size == 128
    assert server.asked == []


@pytest.mark.parametrize("commit", ["../../..", "/etc", "", "a/b", "\x00", "x" * 2000])
def test_a_cache_cannot_lead_out_of_itself(server, tmp_path, commit):
    base = tmp_path / "hf" / "hub" / "models--org--m"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(commit)
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CONFIG))
    assert "org/m" in refusal()


def test_a_header_that_cannot_be_read_is_told_and_the_rest_goes_on(server):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    for content in (b"", b"\xff" * 8, struct.pack("<Q", 50) + b"{", cut, (500, {})):
        server.pages[page("org/m", "model.safetensors")] = content
        model = resolve_model("org/m")
        assert model.weights is None
        assert model.notes[0].startswith("the weights' header was not read: org/m")


def test_an_index_that_names_what_is_not_there(server):
    server.pages[page("org/m")] = json.dumps(CONFIG).encode()
    index = {"weight_map": {"a": "gone.safetensors"}}
    server.pages[page("org/m", "model.safetensors.index.json")] = json.dumps(index).encode()
    [note] = resolve_model("org/m").notes
    assert "gone.safetensors is named in model.safetensors.index.json but is not there" in note


@pytest.mark.parametrize("endpoint", ["ftp://x", "file:///etc", "huggingface.co", "http://user@host", "http://a b"])
def test_an_endpoint_must_be_an_address(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert refusal() == "HF_ENDPOINT: allowed: an http:// or https:// address"


@pytest.mark.parametrize(
    ("name", "right"),
    [("org/name", True), ("org/name@v1", True), ("o/n.1-x_y", True), ("name", False), ("a/b/c", False),
     ("../b", False), ("a/..", False), ("a/b--c", False), ("a/b c", False), ("a/b?x=1", False), ("a/b@../../x", False)],
)  # fmt: skip
def test_what_is_a_hub_id(name, right):
    assert hub.is_hub_id(name) is right
