"""The Hugging Face Hub, as little of it as is needed: config.json and the headers of safetensors files.

Nothing else is downloaded and nothing is written. HF_TOKEN (or the token file), HF_ENDPOINT, HF_HUB_OFFLINE and the
local cache (HF_HOME, HF_HUB_CACHE) mean what they mean to huggingface_hub 1.x; the cache is asked first. The server is
not trusted: replies are bounded in size and time, and a redirect to another host never carries the token.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.bounds import bounded_bytes, decoded
from tunecast.job.safetensors import MOST_INDEX_BYTES, Weights, header_counts, shards, weights_of
from tunecast.records import NamedTuple, dataclass, field
from tunecast.units import KIB

if TYPE_CHECKING:
    from tunecast.job import fetch

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 10.0
MOST_HEADERS_S = 60.0
FIRST_BYTES = 128 * KIB
"""Of a safetensors file, asked for at once: holds the whole header of most shards, so one request does."""
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_.\-/]{{1,100}}))?")
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}")
_TRUE = frozenset({"1", "on", "yes", "true"})


class NotReached(NotResolved):
    """The Hub gave no answer, or not without a token: a copy from elsewhere may stand in."""


@dataclass(frozen=True)
class Settings:
    endpoint: str
    token: str | None = field(repr=False)
    offline: bool
    cache: Path
    timeout_s: float = TIMEOUT_S


class Config(NamedTuple):
    text: str
    source: str
    folder: Path | None
    """In the cache; None when it came over the network."""


def settings(environ: Mapping[str, str] | None = None, *, offline: bool | None = None) -> Settings:
    env = os.environ if environ is None else environ
    home = _expanded(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    if offline is None:
        offline = any(env.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    endpoint = (env.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", endpoint):
        raise NotResolved("HF_ENDPOINT: allowed: an http:// or https:// address", field="model")
    timeout = env.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    timeout_s = min(max(float(timeout), 1.0), 600.0) if re.fullmatch(r"\d{1,6}", timeout) else TIMEOUT_S
    return Settings(endpoint, _token(env, home), offline, _expanded(cache) if cache else home / "hub", timeout_s)


def is_hub_id(name: str) -> bool:
    """`org/name`, or `org/name@revision`."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def config(name: str, how: Settings, most_bytes: int) -> Config:
    """A model's config.json: from the cache, else from the Hub."""
    folder = cached_folder(name, how)
    if folder is not None:
        content = bounded_bytes(folder / CONFIG, most_bytes)
        return Config(_text(content, str(folder / CONFIG)), str(folder / CONFIG), folder)
    if how.offline:
        why = f"{name}: offline, and not in the local cache ({how.cache})"
        raise NotReached(f"{why}; download it once, or give a path to its config.json", field="model")
    url = _url(name, CONFIG, how)
    content = _fetched(name, CONFIG, how, most_bytes).content
    return Config(_text(content, url), url, None)


def weights(name: str, how: Settings, found: Config) -> Weights | None:
    """What the safetensors files of a model store, from where its config.json was found; None if it has none."""
    if found.folder is not None:
        return folder_weights(found.folder)
    end_s = time.monotonic() + MOST_HEADERS_S
    index = _fetched_or_none(name, INDEX, how, MOST_INDEX_BYTES)
    names = (SINGLE,) if index is None else shards(index.content, INDEX)
    counts = []
    for file in names:
        if time.monotonic() > end_s:
            raise NotResolved(f"{name}: the headers of its {len(names)} files took too long", field="model")
        first = _fetched_or_none(name, file, how, FIRST_BYTES, part=True)
        if first is None:
            if index is None:
                return None
            raise NotResolved(f"{name}: {file} is named in {INDEX} but is not there", field="model")

        def read(n: int, file: str = file, first: bytes = first.content) -> bytes:
            # a file shorter than what was asked for is all there
            if n <= len(first) or len(first) < FIRST_BYTES:
                return first[:n]
            return _fetched(name, file, how, n, part=True).content

        counts.append(header_counts(read, f"{name}/{file}"))
    return weights_of(counts)


def folder_weights(folder: Path) -> Weights | None:
    """The same, of a folder."""
    if (folder / INDEX).is_file():
        names = shards(bounded_bytes(folder / INDEX, MOST_INDEX_BYTES), str(folder / INDEX))
        if not all((folder / name).is_file() for name in names):
            return None  # a cache often holds the configuration alone
    elif (folder / SINGLE).is_file():
        names = (SINGLE,)
    else:
        return None
    return weights_of(header_counts(_reader(folder / name), str(folder / name)) for name in names)


def cached_folder(name: str, how: Settings) -> Path | None:
    """`models--org--name/snapshots/<commit>` of huggingface_hub's cache, where that holds a config.json."""
    repository, revision = _split(name)
    base = how.cache / f"models--{repository.replace('/', '--')}"
    commit = revision
    try:
        if ".." not in revision and (base / "refs" / revision).is_file():
            commit = bounded_bytes(base / "refs" / revision, KIB).decode("ascii", "replace").strip()
        folder = base / "snapshots" / commit
        return folder if _COMMIT.fullmatch(commit) and (folder / CONFIG).is_file() else None
    except (OSError, NotResolved):  # a cache that cannot be read is no cache
        return None


def _fetched_or_none(name: str, file: str, how: Settings, most: int, part: bool = False) -> fetch.Reply | None:
    try:
        return _fetched(name, file, how, most, part=part)
    except _NoSuchFile:
        return None


def _fetched(name: str, file: str, how: Settings, most_bytes: int, part: bool = False) -> fetch.Reply:
    from tunecast.job import fetch  # here, as the standard library's http takes 30 ms to import

    url = _url(name, file, how)
    try:
        reply = fetch.request(url, how.token, most_bytes, how.timeout_s, part=part)
    except fetch.NoReply as error:
        raise NotReached(
            f"{name}: {url}: {error}; without a network, give a path to its config.json", field="model"
        ) from None
    if reply.status in (200, 206):
        return reply
    raise _refusal(name, file, reply, how)


def _refusal(name: str, file: str, reply: fetch.Reply, how: Settings) -> NotResolved:
    repository, revision = _split(name)
    where = f"{how.endpoint}/{repository}"
    if reply.status == 404 and reply.error_code == "EntryNotFound":
        return _NoSuchFile(f"{name}: {where} has no {file}", field="model")
    if reply.status == 404 and not reply.error_code:  # a mirror that does not say which
        return _NoSuchFile(f"{name}: {where} does not exist, or has no {file}", field="model")
    if reply.status == 404 and reply.error_code == "RevisionNotFound":
        return NotResolved(f"{name}: {where} has no revision {revision}", field="model")
    if reply.status == 404:
        return NotResolved(f"{name}: {where} does not exist", field="model")
    if reply.error_code == "GatedRepo":
        remedy = "accept its terms there" + ("" if how.token else " and set HF_TOKEN")
        return NotReached(f"{name}: gated; {remedy} ({where})", field="model")
    if reply.status in (401, 403):
        remedy = "this token may not read it" if how.token else "set HF_TOKEN if it is private"
        return NotReached(f"{name}: {where} does not exist, or may not be read; {remedy}", field="model")
    if 300 <= reply.status < 400:
        return NotReached(f"{name}: {where} answered with redirects that lead nowhere", field="model")
    return NotReached(f"{name}: {where} answered {reply.status}; try again later", field="model")


class _NoSuchFile(NotResolved):
    """The repository is there, or may be; this file of it is not."""


def _split(name: str) -> tuple[str, str]:
    match = _ID.fullmatch(name)
    if match is None:
        raise NotResolved(f"{name!r:.80} is not a Hub id", field="model")
    return match[1], match[2] or "main"


def _url(name: str, file: str, how: Settings) -> str:
    repository, revision = _split(name)
    return f"{how.endpoint}/{repository}/resolve/{quote(revision, safe='')}/{quote(file)}"


def _token(env: Mapping[str, str], home: Path) -> str | None:
    """HF_TOKEN, or what `hf auth login` wrote. Never shown, so a wrong one is described and not quoted."""
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if not token and env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() not in _TRUE:
        path = _expanded(env.get("HF_TOKEN_PATH") or home / "token")
        try:
            token = path.read_text("utf-8")[:4096] if path.is_file() else None
        except (OSError, ValueError):
            return None
    token = (token or "").strip()
    if token and not re.fullmatch(r"[!-~]{1,4096}", token):
        raise NotResolved("HF_TOKEN: holds characters that no token has", field="model")
    return token or None


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no home: a container's user often has none
        return Path(path)


def _reader(path: Path) -> Callable[[int], bytes]:
    def read(n: int) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(n)
        except OSError as error:
            raise NotResolved(f"{path}: {error.strerror or 'cannot be read'}", field="model") from None

    return read


def _text(content: bytes, where: str) -> str:
    try:
        return decoded(content, where)
    except UsageError as error:
        raise NotResolved(error.message, field="model") from None
