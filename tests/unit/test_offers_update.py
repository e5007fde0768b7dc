"""`tunecast offers update` against servers on this machine: good, bad, slow, hostile. The old data stay whole."""

from __future__ import annotations

import io
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tunecast.errors import NotResolved
from tunecast.market import store, update
from tunecast.market.clean import order
from tunecast.market.offer import Offer
from tunecast.market.sources import gpuhunt, skypilot
from tunecast.market.update import Feeds, feeds

TODAY = date(2026, 11, 15)

# As recorded from skypilot-catalog v8, shortened: verda's list, shadeform's, and Google's with its rows of machines and
# of cards.
VERDA = b"""InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Price,SpotPrice
1B200.30V,30.0,184.0,B200,1.0,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 184320}}]}",FIN-03,4.89,1.712
2H200.141S.88V,88.0,370.0,H200,2.0,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 144384}}]}",FIN-02,6.78,2.373
2H200.141S.88V,88.0,370.0,H200,2.0,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 144384}}]}",FIN-03,6.78,2.373
1RTX6000ADA.10V,10.0,60.0,RTX-6000-Ada,1.0,"{}",FIN-03,0.8262,
CPU.4V.16G,4.0,16.0,,,,FIN-01,0.0279,0.0098
"""
SHADEFORM = b"""InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
scaleway_L4,L4,1.0,8.0,48,0.95,paris-france-5,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 24}}]}",
denvr_A100-sxm4x8,A100,8.0,120.0,940,11.2,calgary-canada-1,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40}}]}",
lambdalabs_A100x8,A100,8.0,124.0,1800,15.92,tokyo-japan-1,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40}}]}",
"""
GOOGLE = b"""InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Region,AvailabilityZone,Price,SpotPrice
a3-highgpu-8g,208.0,1872.0,,,europe-west4,europe-west4-b,9.93306,1.7888
a3-highgpu-8g,208.0,1872.0,,,europe-west4,europe-west4-c,9.93306,1.7888
,,,H100,8.0,europe-west4,europe-west4-b,80.0,20.0
,,,H100,8.0,europe-west4,europe-west4-c,80.0,30.0
,,,H100,8.0,mars-west1,mars-west1-a,80.0,30.0
"""
AZURE = b"""instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size
Standard_ND96isr_H100_v5,westeurope,98.32,96,1900.0,8,H100,80.0,False,
Standard_ND96isr_H100_v5,westeurope,30.1,96,1900.0,8,H100,80.0,True,
Standard_D2s_v5,westeurope,0.1,2,8.0,0,,,False,
"""


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.csv", content)
    return out.getvalue()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = self.server.pages.get(self.path, 404)  # type: ignore[attr-defined]
        if callable(page):
            page(self)
        elif isinstance(page, int):
            self.answer(b"", page)
        else:
            self.answer(page)

    def answer(self, content: bytes, status: int = 200, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.pages, made.pages_sent_whole = {}, 0  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path)}


@pytest.fixture(autouse=True)
def nothing_bundled(monkeypatch):
    """What is bundled is longer than these lists: they would all look cut off."""
    monkeypatch.setattr(store, "bundled", lambda: ())


def run(server, environ, timeout_s=2.0):
    url = f"http://127.0.0.1:{server.server_port}"
    return update.update(TODAY, Feeds(f"{url}/sky", f"{url}/hunt", timeout_s), environ)


def good(server) -> None:
    server.pages = {
        "/sky/verda/vms.csv": VERDA,
        "/sky/shadeform/vms.csv": SHADEFORM,
        "/sky/gcp/vms.csv": GOOGLE,
        "/hunt/version": b"20261114-231\n",
        "/hunt/20261114-231/catalog.zip": zipped(azure=AZURE),
    }


def of(updated, source):
    return next(each for each in updated.outcomes if each.source == source)


def test_what_is_good_is_taken_and_what_is_missing_is_said(server, environ):
    good(server)
    updated = run(server, environ)
    assert {each.source: each.offers for each in updated.outcomes if not each.why} == {
        "skypilot/gcp": 2, "skypilot/shadeform": 3, "skypilot/verda": 5, "gpuhunt/azure": 2,
    }  # fmt: skip
    assert "answered 404" in of(updated, "skypilot/aws").why
    assert "not in its archive" in of(updated, "gpuhunt/oci").why
    offers = store.kept(store.FETCHED, environ)
    assert len(offers) == 12
    assert store.offers(environ) == offers


def test_verda_has_one_offer_of_two_regions(server, environ):
    good(server)
    run(server, environ)
    (offer,) = (each for each in store.offers(environ) if each.gpu == "h200-sxm-141gb" and each.kind == "spot")
    assert (offer.regions, offer.countries) == (("FIN-02", "FIN-03"), ("FI", "FI"))
    assert (offer.usd_per_hour, offer.vcpus, offer.dated, offer.source) == (2.373, 88, TODAY, "skypilot/verda")


def test_googles_cards_and_machines_are_added_and_zones_joined(server, environ):
    good(server)
    run(server, environ)
    prices = {each.kind: each.usd_per_hour for each in store.offers(environ) if each.provider == "gcp"}
    # 9.93306 + 80; the median of 1.7888 + 20 and 1.7888 + 30; the zone without a machine is left out
    assert prices == {"on-demand": pytest.approx(89.93306, rel=1e-5), "spot": pytest.approx(26.7888, rel=1e-5)}


def test_a_broker_is_named(server, environ):
    good(server)
    run(server, environ)
    sold = {each.provider: each for each in store.offers(environ) if each.via == "shadeform"}
    assert set(sold) == {"scaleway", "denvr", "lambda"}
    assert (sold["scaleway"].countries, sold["denvr"].gpu) == (("FR",), "a100-sxm-40gb")
    assert (sold["lambda"].gpu, sold["lambda"].countries) == ("a100-sxm-40gb", ("JP",))


def test_gpuhunts_day_is_its_versions(server, environ):
    good(server)
    run(server, environ)
    azure = [each for each in store.offers(environ) if each.provider == "azure"]
    assert {(each.kind, each.usd_per_hour, each.countries) for each in azure} == {
        ("on-demand", 98.32, ("NL",)), ("spot", 30.1, ("NL",)),
    }  # fmt: skip
    assert {each.dated for each in azure} == {date(2026, 11, 14)}


def cut_off(handler: Handler) -> None:
    handler.answer(VERDA[: len(VERDA) // 2], length=len(VERDA))


def slow(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(600):
        try:
            handler.wfile.write(b"x")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.1)
    handler.server.pages_sent_whole += 1  # type: ignore[attr-defined]


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(VERDA)
    except OSError:
        return


def elsewhere(handler: Handler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "file:///etc/passwd")
    handler.end_headers()


HEADER = VERDA.partition(b"\n")[0] + b"\n"
BAD = {
    "gone": 404,
    "broken": 500,
    "empty": b"",
    "a page": b"<html><body>Rate limited</body></html>\n",
    "only a header": HEADER,
    "not text": b"\xff\xfe\x00\x01\n",
    "cut off on the way": cut_off,
    "cut off and not told": VERDA[:-40],
    "shrunk": HEADER + b"".join(VERDA.splitlines(True)[1:2]),
    "other columns": b"a,b,c\n1,2,3\n",
    "ragged": HEADER + b"1,2,3\n",
    "a quote that never ends": HEADER + b'"' + b"x" * 200_000 + b"\n",
    "no price is one": re.sub(rb"[0-9.]+,[0-9.]*\n", b"nan,-1\n", VERDA),
    "a file of ours": elsewhere,
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_list_leaves_the_old_one_whole(server, environ, how):
    good(server)
    run(server, environ)
    path = store.folder(environ) / store.FETCHED
    before = [line for line in path.read_text("utf-8").splitlines() if "skypilot/verda" in line]
    server.pages["/sky/verda/vms.csv"] = BAD[how]
    updated = run(server, environ)
    assert of(updated, "skypilot/verda").why
    assert not of(updated, "skypilot/gcp").why
    assert [line for line in path.read_text("utf-8").splitlines() if "skypilot/verda" in line] == before
    assert [each.name for each in path.parent.iterdir()] == [store.FETCHED], "no part is left behind"


@pytest.mark.parametrize("page", [slow, endless], ids=["slow", "endless"])
def test_a_server_that_wants_our_time_or_memory_gets_neither(server, environ, monkeypatch, page):
    good(server)
    run(server, environ)
    server.pages["/sky/verda/vms.csv"] = page
    monkeypatch.setattr(update, "MOST_BYTES", 100_000)
    updated = run(server, environ, timeout_s=0.5)
    assert not server.pages_sent_whole
    assert of(updated, "skypilot/verda").why
    assert sum(each.source == "skypilot/verda" for each in store.kept(store.FETCHED, environ)) == 5


@pytest.mark.whole
def test_all_lists_together_have_an_end(server, environ):
    """Ten servers that drip: each is waited for a second, but all of them no longer than two."""
    server.pages = {f"/sky/{cloud}/vms.csv": slow for cloud in skypilot.CLOUDS} | {"/hunt/version": slow}
    url = f"http://127.0.0.1:{server.server_port}"
    updated = update.update(TODAY, Feeds(f"{url}/sky", f"{url}/hunt", 0.5, whole_s=2.0), environ)
    assert not server.pages_sent_whole
    told = [each.why for each in updated.outcomes]
    assert len(told) == 10 and all(told) and updated.path is None
    assert told[-1] == "not asked for: those before it took the 2 s there are for all lists"


def test_nobody_there_writes_nothing(environ):
    updated = update.update(TODAY, Feeds("http://127.0.0.1:9/sky", "http://127.0.0.1:9/hunt", 1.0), environ)
    assert updated.path is None
    assert all(each.why for each in updated.outcomes)
    assert not store.folder(environ).exists()


def bomb() -> bytes:
    return zipped(azure=b"0" * 5_000_000)


@pytest.mark.parametrize(
    ("version", "archive"),
    [
        (b"../../etc/passwd", None),
        (b"20261399", None),
        (b"x" * 1000, None),
        (b"20261114", b"no archive at all"),
        (b"20261114", zipped(azure=AZURE)[:-30]),
        (b"20261114", bomb()),
        (b"20261114", zipped(other=AZURE)),
    ],
)
def test_a_hostile_archive(server, environ, monkeypatch, version, archive):
    good(server)
    run(server, environ)
    monkeypatch.setattr(gpuhunt, "MOST_MEMBER_BYTES", 1_000_000)
    server.pages["/hunt/version"] = version
    server.pages["/hunt/20261114/catalog.zip"] = archive or 404
    assert of(run(server, environ), "gpuhunt/azure").why
    assert sum(each.provider == "azure" for each in store.offers(environ)) == 2


def test_what_a_list_calls_things_is_never_more_than_a_name(server, environ):
    """A provider's name becomes part of what we print and write."""
    evil = b'"evil\x1b[31m,../../x_L4",L4,1.0,8.0,48,0.95,paris-france-5,"{}",\n'
    good(server)
    server.pages["/sky/shadeform/vms.csv"] = SHADEFORM + evil
    assert of(run(server, environ), "skypilot/shadeform").offers == 3
    assert "\x1b" not in (store.folder(environ) / store.FETCHED).read_text("utf-8")


def test_what_was_fetched_replaces_what_is_bundled(server, environ, monkeypatch):
    good(server)
    run(server, environ)
    old = store.kept(store.FETCHED, environ)[-1]
    monkeypatch.setattr(store, "bundled", lambda: (old,))
    assert sum(each == old for each in store.offers(environ)) == 1


def test_a_damaged_file_of_ones_own_says_so(environ):
    path = store.folder(environ) / store.FETCHED
    path.parent.mkdir(parents=True)
    path.write_text("provider,kind\n")
    with pytest.raises(NotResolved, match="To fix: delete it, or tunecast offers update"):
        store.offers(environ)


def azure(n, **more):
    fields = {"instance": f"Standard_{n}", "regions": ("eastus",), "countries": ("US",), **more}
    return Offer("azure", "on-demand", "h100-sxm-80gb", 8, 80.0 + n, TODAY, "skypilot/azure", **fields)


def test_one_row_does_not_replace_seventy_eight(server, environ, monkeypatch):
    """gpuhunt's list of Azure takes the place of SkyPilot's: that is what its length is compared with."""
    old = tuple(azure(n) for n in range(78))
    monkeypatch.setattr(store, "bundled", lambda: old)
    good(server)
    outcome = of(run(server, environ), "gpuhunt/azure")
    assert (outcome.offers, outcome.before) == (0, 78)
    assert outcome.why == "2 offers, where there were 78: cut off, or no longer what it was"
    assert [each for each in store.offers(environ) if each.provider == "azure"] == sorted(old, key=order)


def test_as_long_a_list_of_another_keeper_does(server, environ, monkeypatch):
    monkeypatch.setattr(store, "bundled", lambda: (azure(1), azure(2), azure(3)))
    good(server)
    assert of(run(server, environ), "gpuhunt/azure").offers == 2
    assert {each.source for each in store.offers(environ) if each.provider == "azure"} == {"gpuhunt/azure"}


PEERS = tuple(
    Offer(name, kind, gpu, 1, usd, TODAY, f"{name}-list")
    for name in ("a", "b")
    for kind, gpu, usd in (
        ("on-demand", "b200-sxm-180gb", 5.0), ("on-demand", "h200-sxm-141gb", 3.5), ("on-demand", "rtx-6000-ada", 0.8),
    )
)  # fmt: skip


def with_prices(**prices):
    """VERDA, an instance's price and spot price changed."""
    lines = VERDA.decode().splitlines()
    for index, line in enumerate(lines):
        name, *_ = line.partition(".")
        if name in (key.lstrip("_") for key in prices):
            head = line.rsplit(",", 2)[0]
            lines[index] = f"{head},{prices[f'_{name}']}"
    return ("\n".join(lines) + "\n").encode()


def test_an_h200_at_a_hundredth_of_a_cent_is_not_taken(server, environ, monkeypatch):
    monkeypatch.setattr(store, "bundled", lambda: PEERS)
    good(server)
    server.pages["/sky/verda/vms.csv"] = with_prices(_2H200="0.0001,2.373")
    outcome = of(run(server, environ), "skypilot/verda")
    assert (outcome.why, outcome.offers, outcome.far_off) == ("", 4, 2)  # two regions
    kinds = {each.kind for each in store.offers(environ) if each.provider == "verda" and "h200" in each.gpu}
    assert kinds == {"spot"}


@pytest.mark.parametrize("factor", [0.01, 100.0], ids=["cents for dollars", "dollars for cents"])
def test_a_list_in_another_unit_is_refused_whole(server, environ, monkeypatch, factor):
    monkeypatch.setattr(store, "bundled", lambda: PEERS)
    good(server)
    run(server, environ)
    before = [each for each in store.offers(environ) if each.provider == "verda"]
    server.pages["/sky/verda/vms.csv"] = with_prices(
        _1B200=f"{4.89 * factor},{1.712 * factor}", _2H200=f"{6.78 * factor},{2.373 * factor}",
        _1RTX6000ADA=f"{0.8262 * factor},",
    )  # fmt: skip
    outcome = of(run(server, environ), "skypilot/verda")
    assert "7 of its 7 prices are more than 6 times off the other lists'" in outcome.why
    assert "tunecast offers add" in outcome.why
    assert [each for each in store.offers(environ) if each.provider == "verda"] == before


def test_without_peers_its_own_prices_of_before_count(server, environ):
    good(server)
    run(server, environ)
    server.pages["/sky/verda/vms.csv"] = with_prices(_1RTX6000ADA="0.08,")
    outcome = of(run(server, environ), "skypilot/verda")
    assert (outcome.offers, outcome.far_off) == (4, 1)
    assert not [each for each in store.offers(environ) if each.gpu == "rtx-6000-ada"]


def test_a_price_that_halved_is_taken(server, environ, monkeypatch):
    """As DigitalOcean's H100 did."""
    monkeypatch.setattr(store, "bundled", lambda: PEERS)
    good(server)
    run(server, environ)
    server.pages["/sky/verda/vms.csv"] = with_prices(_1RTX6000ADA="0.41,")
    assert of(run(server, environ), "skypilot/verda").far_off == 0
    (offer,) = [each for each in store.offers(environ) if each.gpu == "rtx-6000-ada" and each.provider == "verda"]
    assert offer.usd_per_hour == 0.41


def test_mirrors():
    assert feeds({"TUNECAST_SKYPILOT_CATALOG": "http://127.0.0.1:1/x/"}).skypilot == "http://127.0.0.1:1/x"
    assert feeds({}).gpuhunt.startswith("https://")
    with pytest.raises(NotResolved, match="TUNECAST_GPUHUNT_CATALOG"):
        feeds({"TUNECAST_GPUHUNT_CATALOG": "file:///etc/passwd"})


def test_lists_that_were_written_once_are_not_fetched_as_if_they_were_new():
    assert not {"oci", "hyperstack", "azure", "ibm"} & set(skypilot.CLOUDS)
