"""The server on stdin and stdout: what a client sends, and what is shown of it, in the words of the protocol."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from tunecast import __version__
from tunecast.job.comment import comment_of
from tunecast.lsp import completing, show
from tunecast.lsp.answerer import Answerer, NotAnswered
from tunecast.lsp.asked import EditorSettings, asked_in, both, card_flags, settings_of
from tunecast.lsp.positions import Position, Span
from tunecast.lsp.scripts import trace_text, traced_lines
from tunecast.lsp.tracing import trace_of, trace_words
from tunecast.lsp.watched import MOST_BYTES, Traced, Watched
from tunecast.units import gib

SECTION = "tunecast"
COMMANDS = ("plan", "fit", "launch", "trace")
FIRST_LINES = 12
"""Of what a command prints, where a client can only show a message."""
log = logging.getLogger("tunecast.lsp")


class Server(LanguageServer):  # type: ignore[misc]  # pygls is not looked at while types are checked
    """Open files by URI, and what their client can do."""

    def __init__(self) -> None:
        super().__init__(
            "tunecast", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full, max_workers=1
        )
        self.settings = EditorSettings()
        self.files: dict[str, Watched] = {}
        self.answerer = Answerer()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._refreshing = False
        self.changes = 0

    # what a client can do

    def can(self, *names: str) -> bool:
        found: Any = self.protocol.client_capabilities
        for name in names:
            found = getattr(found, name, None)
        return bool(found)

    # files

    def open(self, uri: str, text: str) -> None:
        path = path_of(uri)
        if path is None or not self.settings.enable:
            return
        file = self.files.get(uri)
        if file is None:
            units = str(getattr(self.workspace.position_encoding, "value", self.workspace.position_encoding))
            file = self.files[uri] = Watched(path, units, self.answerer, self.shown)
        file.change(text, self.settings.asked)
        self.changes += 1
        if self.changes % COLLECT_EVERY == 0:
            forget_done(self.protocol)
            gc.collect()

    def close(self, uri: str) -> None:
        file = self.files.pop(uri, None)
        if file is not None:
            file.stop()
            self.publish(uri, [])

    def open_again(self) -> None:
        """As the settings are now."""
        for uri, document in list(self.workspace.text_documents.items()):
            if self.settings.enable:
                self.open(uri, document.source)
            else:
                self.close(uri)

    def shown(self, file: Watched, what: str) -> None:
        """Something more is known of a file."""
        uri = next((uri for uri, each in self.files.items() if each is file), None)
        if uri is None:
            return
        if what == "fault":
            if file.fault is not None:
                log.error(file.fault)
            return
        if what in ("look", "remedies") or (what == "cost" and file.remedies is None):
            self.publish(uri, list(show.marks(file)))
        self.refresh()

    def publish(self, uri: str, marks: Sequence[show.FileMark]) -> None:
        told = [
            types.Diagnostic(
                range=range_of(mark.span), message=mark.message, severity=types.DiagnosticSeverity(mark.severity),
                code=mark.code, source=SECTION,
            )
            for mark in marks
        ]  # fmt: skip
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=told))

    def refresh(self) -> None:
        """Soon, once for all that comes within a moment."""
        if not self._refreshing:
            self._refreshing = True
            asyncio.get_running_loop().call_later(REFRESH_S, self._refresh)

    def _refresh(self) -> None:
        self._refreshing = False
        if self.can("workspace", "inlay_hint", "refresh_support"):
            self.workspace_inlay_hint_refresh(None)
        if self.can("workspace", "code_lens", "refresh_support"):
            self.workspace_code_lens_refresh(None)

    # results

    async def show_result(self, title: str, text: str) -> None:
        if not self.settings.show_results:
            return
        if self.can("window", "show_document", "support"):
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="tunecast-")
            name = "".join(each if each.isalnum() or each in "._-" else "-" for each in title)[:80]
            path = Path(self._folder.name) / f"{name}.txt"
            path.write_text(text, encoding="utf-8")
            uri = from_fs_path(str(path)) or ""
            await self.window_show_document_async(types.ShowDocumentParams(uri=uri, take_focus=True))
        else:
            lines = text.strip().split("\n")
            self.say("\n".join(lines[:FIRST_LINES]))

    def say(self, message: str, kind: types.MessageType = types.MessageType.Info) -> None:
        self.window_show_message(types.ShowMessageParams(type=kind, message=message))

    def end(self) -> None:
        for file in self.files.values():
            file.stop()
        self.answerer.end()
        if self._folder is not None:
            self._folder.cleanup()


REFRESH_S = 0.1
COLLECT_EVERY = 500
"""Changes between two whole collections of garbage. A command looks for cycles every 100,000 objects (cli/main.py), as
it ends soon: with that, 100,000 edits had grown the server from 63 to 309 MiB."""
USUAL_THRESHOLDS = (700, 10, 10)
"""Python's own."""


def forget_done(protocol: Any) -> None:
    """pygls 2.1.1 keeps the future of every handler that a notification ran (protocol/json_rpc.py, `_execute_handler`:
    only those of requests are popped), some kilobytes an edit."""
    kept: dict[Any, Any] = getattr(protocol, "_request_futures", {})
    for number in [number for number, future in kept.items() if future.done()]:
        kept.pop(number, None)


def path_of(uri: str) -> Path | None:
    """Of a file, also of one that was never saved; None where it is nothing of the kind."""
    if uri.startswith("file:"):
        found = to_fs_path(uri)
        return None if not found or "\0" in found else Path(found)
    if uri.startswith("untitled:"):
        name = os.path.basename(uri.partition(":")[2]) or "untitled"
        return Path.cwd() / name if "." in name else Path.cwd() / f"{name}.yaml"
    return None


def range_of(span: Span) -> types.Range:
    return types.Range(
        types.Position(span.start.line, span.start.character), types.Position(span.end.line, span.end.character)
    )


def initialize(ls: Server, params: types.InitializeParams) -> None:
    ls.settings = settings_of(params.initialization_options)
    ls.answerer.start()


async def initialized(ls: Server, params: types.InitializedParams) -> None:
    if ls.can("workspace", "did_change_configuration", "dynamic_registration"):
        registration = types.Registration(
            id="tunecast-configuration",
            method=types.WORKSPACE_DID_CHANGE_CONFIGURATION,
            register_options=types.DidChangeConfigurationRegistrationOptions(section=SECTION),
        )
        await ls.client_register_capability_async(types.RegistrationParams([registration]))
    await pull_settings(ls)


async def configured(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    given = plain(params.settings)
    if isinstance(given, dict) and given.get(SECTION) is not None:
        ls.settings = settings_of(given, ls.settings)
        ls.open_again()
    else:
        await pull_settings(ls)


def shutdown(ls: Server, *args: Any) -> None:
    ls.end()


async def opened(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
    ls.open(params.text_document.uri, params.text_document.text)


async def changed(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    ls.open(uri, ls.workspace.get_text_document(uri).source)


async def saved(ls: Server, params: types.DidSaveTextDocumentParams) -> None:
    """Another file may be one that an open one points to."""
    for uri, file in ls.files.items():
        if uri != params.text_document.uri and file.known:
            file.change(file.text.text, ls.settings.asked)


async def closed(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
    ls.close(params.text_document.uri)


async def hints(ls: Server, params: types.InlayHintParams) -> list[types.InlayHint]:
    file = ls.files.get(params.text_document.uri)
    if file is None or await file.looked() is None:
        return []
    first, last = params.range.start.line, params.range.end.line
    return [
        types.InlayHint(
            types.Position(hint.position.line, hint.position.character), hint.text, tooltip=markdown(hint.tooltip)
        )
        for hint in show.hints(file)
        if first <= hint.position.line <= last
    ]


async def lenses(ls: Server, params: types.CodeLensParams) -> list[types.CodeLens]:
    file = ls.files.get(params.text_document.uri)
    if file is None:
        return []
    await file.looked()  # a script has lenses also where no reader knows it
    return [code_lens(lens, params.text_document.uri) for lens in show.lenses(file)]


async def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
    file = ls.files.get(params.text_document.uri)
    if file is None or await file.looked() is None:
        return None
    told = show.hover(file, Position(params.position.line, params.position.character))
    return None if told is None else types.Hover(contents=markdown(told))


async def actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    uri = params.text_document.uri
    file = ls.files.get(uri)
    wanted = params.context.only
    if file is None or (wanted and types.CodeActionKind.QuickFix not in wanted) or await file.looked() is None:
        return []
    own = [each for each in params.context.diagnostics if each.source == SECTION]
    verdicts = [each for each in own if each.code in ("does-not-fit", "may-not-fit")]
    if not verdicts:
        return []
    version = ls.workspace.get_text_document(uri).version
    remedies = await file.all_remedies()
    return [code_action(file, uri, version, remedy, verdicts) for remedy in remedies]


async def writable(file: Watched, tried: Sequence[str]) -> Any:
    """What may be written, by the first of these texts that can be read."""
    try:
        for text in dict.fromkeys(filter(None, tried)):
            known = await file.ask("keys", text)
            if known["framework"]:
                return known
    except NotAnswered:
        return None
    return None


async def completion(ls: Server, params: types.CompletionParams) -> types.CompletionList | None:
    file = ls.files.get(params.text_document.uri)
    if file is None or show.is_script(file):
        return None
    position, ending = Position(params.position.line, params.position.character), file.path.suffix.lower()
    text = file.text
    cursor = completing.cursor_at(text, position, ending)
    if not cursor.kind:
        return None
    readable = completing.without_line(text, position.line, ending)
    tried = [readable, file.readable]
    if cursor.kind == "value":
        tried.insert(1, completing.without_value(text, position.line, cursor, ending))
    known = await writable(file, tried)
    if known is None:
        return None
    found = completing.completions(cursor, known["keys"], known["cards"], readable, ending)
    items = [
        types.CompletionItem(
            label=each.label, detail=each.detail or None, text_edit=types.TextEdit(range_of(cursor.span), each.text),
            filter_text=each.text,
            kind=types.CompletionItemKind.Value if each.is_value else types.CompletionItemKind.Property,
        )
        for each in found
    ]  # fmt: skip
    return types.CompletionList(is_incomplete=False, items=items)


FEATURES: Mapping[str, Callable[..., Any]] = {
    types.INITIALIZE: initialize,
    types.INITIALIZED: initialized,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: configured,
    types.SHUTDOWN: shutdown,
    types.TEXT_DOCUMENT_DID_OPEN: opened,
    types.TEXT_DOCUMENT_DID_CHANGE: changed,
    types.TEXT_DOCUMENT_DID_SAVE: saved,
    types.TEXT_DOCUMENT_DID_CLOSE: closed,
    types.TEXT_DOCUMENT_INLAY_HINT: hints,
    types.TEXT_DOCUMENT_CODE_LENS: lenses,
    types.TEXT_DOCUMENT_HOVER: hover,
    types.TEXT_DOCUMENT_CODE_ACTION: actions,
    types.TEXT_DOCUMENT_COMPLETION: completion,
}
OPTIONS: Mapping[str, Any] = {
    types.TEXT_DOCUMENT_COMPLETION: types.CompletionOptions(trigger_characters=[" ", "=", ":", '"']),
    types.TEXT_DOCUMENT_CODE_LENS: types.CodeLensOptions(resolve_provider=False),
    types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
}


def new_server() -> Server:
    server = Server()
    for name, handler in FEATURES.items():
        server.feature(name, OPTIONS.get(name))(handler)
    for name in COMMANDS:
        server.command(f"{SECTION}.{name}")(command_of(name))
    return server


async def pull_settings(ls: Server) -> None:
    if ls.can("workspace", "configuration"):
        item = types.ConfigurationItem(section=SECTION)
        found = await ls.workspace_configuration_async(types.ConfigurationParams([item]))
        ls.settings = settings_of(plain(found[0]) if found else None, ls.settings)
    ls.open_again()


def plain(value: Any) -> Any:
    """pygls gives what it has no class for as named tuples."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def markdown(text: str) -> types.MarkupContent:
    return types.MarkupContent(types.MarkupKind.Markdown, text)


def code_lens(lens: show.Lens, uri: str) -> types.CodeLens:
    command = types.Command(lens.title, lens.command, arguments=[uri] if lens.command else None)
    place = types.Position(lens.line, 0)
    return types.CodeLens(types.Range(place, place), command)


def code_action(
    file: Watched, uri: str, version: int | None, remedy: Any, diagnostics: list[types.Diagnostic]
) -> types.CodeAction:
    changes = show.edits(file.text, remedy["text"])
    edits: list[Any] = [types.TextEdit(range_of(edit.span), edit.text) for edit in changes]
    document = types.OptionalVersionedTextDocumentIdentifier(uri=uri, version=version)
    return types.CodeAction(
        title=remedy["title"],
        kind=types.CodeActionKind.QuickFix,
        diagnostics=diagnostics,
        is_preferred=remedy["chosen"],
        edit=types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, edits)]),
    )


def command_of(name: str) -> Callable[..., Any]:
    async def command(ls: Server, uri: str = "") -> Any:
        return await run_command(ls, name, uri)

    return command


def end_with_request(ls: Server) -> None:
    """Whoever cancels a command's request cancels it: pygls 2.1.1 ends the request alone and lets the command go on
    (protocol/json_rpc.py, `_run_generator`)."""
    request = getattr(ls.protocol, "_request_futures", {}).get(ls.protocol.msg_id)
    task = asyncio.current_task()
    if request is not None and task is not None:
        request.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)


async def run_command(ls: Server, name: str, uri: str) -> Any:
    end_with_request(ls)
    file = ls.files.get(uri)
    if file is None:
        ls.say(f"tunecast {name}: no open file of a training", types.MessageType.Warning)
        return None
    try:
        found = await trace(ls, uri, file) if name == "trace" else await file.ask(name)
    except NotAnswered as error:
        if ls.settings.show_results:
            ls.say(f"tunecast {name}: {error.message}", types.MessageType.Error)
        words = trace_words(file.path, ()) if name == "trace" else ["tunecast", name, str(file.path)]
        return {"title": f"{name} of {file.path.name}", "text": error.message, "json": None, "command": words}
    await ls.show_result(found["title"], found["text"])
    return found


async def trace(ls: Server, uri: str, file: Watched) -> dict[str, Any]:
    """Of the file as it is saved: it is run, and code beside it with it. Raises `NotAnswered`."""
    text, path = file.text, file.path
    if not show.is_script(file):
        raise NotAnswered("only Python scripts are traced; of other files: plan or fit", expected=True)
    if saved_text(path) != text.text.removeprefix("\ufeff"):
        raise NotAnswered("the file has changes that are not saved. To fix: save it, and trace again", expected=True)
    flags = card_flags(both(file.asked, asked_in(comment_of(text.text)))._replace(gpus=None))
    async with progress_of(ls, f"tracing {path.name}") as passed:
        found = await trace_of(path, flags, passed)
    told = trace_text(found, path.name)
    if file.text is text:
        file.traced = Traced(told.partition("\n")[0], tuple(traced_lines(found, path.name)))
        lines = [{"line": each.line, "bytes": each.nbytes, "text": gib(each.nbytes)} for each in file.traced.lines]
        ls.protocol.notify("tunecast/traceLines", {"uri": uri, "lines": lines})
        ls.refresh()
    return {"title": f"trace of {path.name}", "text": told, "json": found, "command": trace_words(path, flags)}


def saved_text(path: Path) -> str | None:
    """Without a byte order mark, which most editors keep to themselves."""
    try:
        return path.read_bytes().decode("utf-8-sig", "replace") if path.stat().st_size <= MOST_BYTES else None
    except OSError:
        return None


@asynccontextmanager
async def progress_of(ls: Server, title: str) -> AsyncGenerator[Callable[[float], None]]:
    """Its client shows it, and may cancel it."""
    if not ls.can("window", "work_done_progress"):
        yield lambda passed_s: None
        return
    token, task = str(uuid4()), asyncio.current_task()
    await ls.work_done_progress.create_async(token)
    ls.work_done_progress.begin(token, types.WorkDoneProgressBegin(title=title, cancellable=True))
    cancelled = ls.work_done_progress.tokens[token]
    cancelled.add_done_callback(lambda done: task.cancel() if task is not None and done.cancelled() else None)
    try:
        yield lambda passed_s: ls.work_done_progress.report(
            token, types.WorkDoneProgressReport(message=f"{passed_s:.0f} s")
        )
    finally:
        ls.work_done_progress.end(token, types.WorkDoneProgressEnd())
        ls.work_done_progress.tokens.pop(token, None)


def serve() -> None:
    """Whatever else is printed goes to stderr: stdout is the client's."""
    server = new_server()
    given, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.set_threshold(*USUAL_THRESHOLDS)
    try:
        server.start_io(given, told)
    finally:
        server.end()
