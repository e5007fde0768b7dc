"""Whether one is free: answers of the shapes the two providers' clients read, from a server on this machine; good, bad,
slow, hostile. No answer is ever more than "not known"."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tunecast.cli import main as cli
from tunecast.errors import NotResolved
from tunecast.market import availability as live
from tunecast.market.availability import FREE, NONE_FREE, NOT_KNOWN, Availability, availability, doors
from tunecast.market.offer import Offer
from tunecast.market.store import bundled

NOW = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
DAY = date(2026, 7, 20)
VAST = Offer("vast.ai", "on-demand", "h100-sxm-80gb", 8, 15.0, DAY, "vast-api", ("SE",), ("SE",))
RUNPOD = Offer(
    *("runpod", "on-demand", "h200-sxm-141gb", 2, 7.98, DAY, "skypilot/runpod", ("CZ",), ("CZ",), "listed"),
    instance="2x_H200_SECURE",
)
ROW = {
    "id": 1, "gpu_name": "H100 SXM", "num_gpus": 8, "gpu_ram": 81559, "geolocation": "Sweden, SE", "rentable": True,
    "dph_total": 17.28, "min_bid": 9.6,
}  # fmt: skip


def machines(*rows: dict[str, Any]) -> bytes:
    return json.dumps({"offers": [{**ROW, **row} for row in rows]}).encode()


def card(status: str | None, **more: Any) -> bytes:
    row = {"id": "NVIDIA H200", "securePrice": 3.99, "communityPrice": 3.59, "lowestPrice": {"stockStatus": status}}
    return json.dumps({"data": {"gpuTypes": [{**row, **more}]}}).encode()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body), dict(self.headers)))  # type: ignore[attr-defined]
        page = self.server.pages.get(self.path, 404)  # type: ignore[attr-defined]
        if callable(page):
            page(self)
            return
        self.send_response(page if isinstance(page, int) else 200)
        content = b"" if isinstance(page, int) else page
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.pages, made.asked, made.pages_sent_whole = {}, [], 0  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def mirrors(server) -> dict[str, str]:
    url = f"http://127.0.0.1:{server.server_port}"
    return {"TUNECAST_VAST_API": f"{url}/vast", "TUNECAST_RUNPOD_API": f"{url}/runpod"}


def ask(server, *offers: Offer) -> list[Availability]:
    found = availability(offers, NOW, doors(mirrors(server)))
    return [found[offer] for offer in offers]


def test_one_is_free_at_the_price_of_the_moment(server):
    server.pages = {"/vast": machines({}, {"dph_total": 16.0}), "/runpod": card("Low")}
    vast, runpod = ask(server, VAST, RUNPOD)
    assert vast == Availability(FREE, NOW, doors(mirrors(server))["vast.ai"].url, 16.0)
    assert (runpod.answer, runpod.usd_per_hour) == (FREE, 7.98)  # two cards of 3.99


def test_what_is_asked(server):
    server.pages = {"/vast": machines(), "/runpod": card(None)}
    ask(server, VAST, RUNPOD)
    (_, vast, headers), (_, runpod, _) = server.asked
    assert vast["gpu_name"] == {"in": ["H100 SXM"]}
    assert (vast["num_gpus"], vast["rented"], vast["type"]) == ({"eq": 8}, {"eq": False}, "on-demand")
    assert runpod["variables"] == {"card": {"id": "NVIDIA H200"}, "machine": {"gpuCount": 2, "secureCloud": True}}
    assert "Authorization" not in headers


def test_none_is_free(server):
    server.pages = {"/vast": machines(), "/runpod": card(None)}
    assert [each.answer for each in ask(server, VAST, RUNPOD)] == [NONE_FREE, NONE_FREE]
    server.pages["/runpod"] = json.dumps({"data": {"gpuTypes": []}}).encode()
    assert ask(server, RUNPOD)[0].answer == NONE_FREE


@pytest.mark.parametrize(
    "other",
    [
        {"geolocation": "California, US"},
        {"gpu_name": "H100 PCIE"},
        {"num_gpus": 4},
        {"gpu_ram": 40960},
        {"rentable": False},
        {"dph_total": None},
        {"dph_total": float("nan")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_machine_is_not_it(server, other):
    server.pages = {"/vast": machines(other)}
    assert ask(server, VAST)[0].answer == NONE_FREE


def test_a_bid_is_its_own_price(server):
    server.pages = {"/vast": machines({})}
    assert ask(server, replace(VAST, kind="spot"))[0].usd_per_hour == 9.6
    assert server.asked[0][1]["type"] == "bid"


def slow(handler: Handler) -> None:
    time.sleep(30)
    handler.server.pages_sent_whole += 1  # type: ignore[attr-defined]


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"[" * 65536)
    except OSError:
        return


@pytest.mark.parametrize(
    "page",
    [
        404, 401, 500, b"", b"<html>", b"[]", b"{}", b'{"offers": 5}', b'{"offers": [1]}', b'{"data": null}', b"\xff",
        b"[" * 100_000, json.dumps({"offers": [{}] * 6000}).encode(), endless, slow,
    ],
)  # fmt: skip
def test_an_answer_that_is_none_leaves_it_not_known(server, monkeypatch, page):
    monkeypatch.setattr(live, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(live, "MOST_BYTES", 1_000_000)
    server.pages = {"/vast": page, "/runpod": page}
    for each in ask(server, VAST, RUNPOD):
        assert each.answer == NOT_KNOWN
        assert each.asked_at == NOW
        assert each.source
    assert not server.pages_sent_whole


def test_names_of_a_server_are_never_more_than_names(server):
    server.pages = {"/vast": machines({"geolocation": "\x1b[31mSE", "gpu_name": "H100 SXM\x07"})}
    (answer,) = ask(server, VAST)
    assert (answer.answer, answer.usd_per_hour) == (FREE, 17.28)
    assert "\x1b" not in answer.source


def test_the_same_question_is_asked_once_and_not_too_many(server, monkeypatch):
    server.pages = {"/vast": machines({})}
    ask(server, VAST, replace(VAST, usd_per_hour=9.0), replace(VAST, regions=("US",), countries=("US",)))
    assert len(server.asked) == 1
    monkeypatch.setattr(live, "MOST_QUESTIONS", 2)
    answers = ask(server, *(replace(VAST, gpus=n) for n in (1, 2, 4)))
    assert answers[2].answer == NOT_KNOWN
    assert "at most 2 questions" in answers[2].source


@pytest.mark.parametrize(
    "offer",
    [
        replace(VAST, provider="verda"), replace(VAST, via="shadeform"), replace(VAST, gpu="gaudi3"),
        replace(RUNPOD, kind="spot"), replace(VAST, kind="owned"),
    ],
    ids=["no door", "sold by another", "no name for the card", "no spot", "own"],
)  # fmt: skip
def test_who_cannot_be_asked_is_not(server, offer):
    (answer,) = ask(server, offer)
    assert (answer.answer, answer.asked_at) == (NOT_KNOWN, None)
    assert server.asked == []


def test_every_card_of_theirs_in_the_catalogue_can_be_asked_about_but_one():
    """RunPod's list of ids does not say which RTX PRO 6000 is which."""
    for name, door in doors({}).items():
        cards = {each.gpu for each in bundled() if each.provider == name and not each.via}
        asked = {each.gpu for each in bundled() if each.provider == name and not each.via and door.question(each)}
        assert {each for each in cards - asked if "rtx-pro-6000" not in each} == set()


def test_mirrors():
    assert doors({})["vast.ai"].url.startswith("https://")
    with pytest.raises(NotResolved, match="TUNECAST_RUNPOD_API"):
        doors({"TUNECAST_RUNPOD_API": "file:///etc/passwd"})


@pytest.fixture
def told(server, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name, url in mirrors(server).items():
        monkeypatch.setenv(name, url)

    def run(*argv: str) -> str:
        assert cli.main(["offers", *argv, "--available"]) == 0
        return capsys.readouterr().out

    return run


def test_the_command_shows_it(server, told):
    server.pages = {"/vast": machines(), "/runpod": card("High")}
    out = told("h200", "--gpus", "2", "--no-spot")
    assert "free?" in out
    lines = {line.split()[3]: line for line in out.splitlines() if line.strip().startswith("2 x h200")}
    assert lines["runpod"].endswith("free now")
    assert lines["vast.ai"].endswith("none free")
    assert lines["lyceum"].endswith("not known")
    page = told("runpod", "h200", "--gpus", "2")
    assert "free now, from 7.98 USD per hour (" in page
    (row,) = json.loads(told("runpod", "h200", "--gpus", "2", "--json"))["offers"]
    assert (row["availability"]["answer"], row["availability"]["usd_per_hour"]) == ("free now", 7.98)


def test_without_asking_nothing_is_asked(server, told, capsys):
    assert cli.main(["offers", "runpod", "h200", "--gpus", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["offers"][0]["availability"] is None
    assert server.asked == []
