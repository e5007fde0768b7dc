"""`tunecast lsp`, a real one, spoken to as an editor does: files of four trainers and of our own, open and edited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.lsp.positions import Position, Text

if find_spec("pygls") is None or find_spec("pytest_lsp") is None:
    pytest.skip("needs pygls and pytest-lsp", allow_module_level=True)

from lsprotocol import types
from pygls.exceptions import JsonRpcRequestCancelled
from pygls.uris import to_fs_path
from pytest_lsp import make_test_lsp_client

from tunecast.lsp.protocol.server import saved_text

pytestmark = pytest.mark.whole

LONGEST_S = 300.0
"""Of one that only waits."""
GONE_S = 60.0
"""Until what was cancelled has ended: it is asked to for 5 s, and then made to."""
JOB = """\
model: llama-3.2-1b
method: lora
lora:
  rank: 16
weights_dtype: bfloat16
seq_len: 32768
micro_batch: 1
hardware:
  gpu: rtx-4090
"""
AXOLOTL = """\
# tunecast: gpu=rtx-4090
base_model: meta-llama/Llama-3.2-1B
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 32768
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
learning_rate: 2e-4
datasets:
  - path: some/data
    type: alpaca
"""
LLAMA_FACTORY = """\
# tunecast: gpu=rtx-4090
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
dataset: alpaca
template: llama3
cutoff_len: 32768
per_device_train_batch_size: 1
bf16: true
"""
TRL = """\
# tunecast: gpu=rtx-4090
model_name_or_path: meta-llama/Llama-3.2-1B
dataset_name: some/data
max_length: 73728
per_device_train_batch_size: 1
use_peft: true
lora_r: 16
bf16: true
"""
TORCHTUNE = """\
# tunecast: gpu=rtx-4090
# tune run lora_finetune_single_device --config mine
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 12288
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: True
batch_size: 1
gradient_accumulation_steps: 1
optimizer:
  _component_: torch.optim.AdamW
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
enable_activation_checkpointing: False
"""
FILES = {
    "job.yaml": JOB, "axolotl.yml": AXOLOTL, "factory.yaml": LLAMA_FACTORY, "trl.yaml": TRL, "tune.yaml": TORCHTUNE,
}  # fmt: skip


class Editor:
    """One server for all tests here, and the loop its client runs in."""

    def __init__(self, folder: Path, options: dict[str, Any] | None = None) -> None:
        self.folder, self.number = folder, 0
        self.runner = asyncio.Runner()
        self.client = make_test_lsp_client()
        self.run(self._start(options or {}))

    async def _start(self, options: dict[str, Any]) -> None:
        source = str(Path(tunecast.__file__).parents[1])
        words = (sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{MAIN}", "lsp")
        await self.client.start_io(*words)
        capabilities = types.ClientCapabilities(workspace=types.WorkspaceClientCapabilities(configuration=True))
        params = types.InitializeParams(capabilities=capabilities, initialization_options=options)
        self.capabilities = (await self.client.initialize_session(params)).capabilities

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def open(self, text: str, name: str = "") -> str:
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        uri = (folder / (name or "file.yaml")).as_uri()
        document = types.TextDocumentItem(uri=uri, language_id="yaml", version=1, text=text)
        self.run(self._tell(self.client.text_document_did_open, types.DidOpenTextDocumentParams(document)))
        return uri

    def change(self, uri: str, text: str, version: int = 2) -> None:
        self.client.diagnostics.pop(uri, None)
        document = types.VersionedTextDocumentIdentifier(uri=uri, version=version)
        change = types.TextDocumentContentChangeWholeDocument(text=text)
        params = types.DidChangeTextDocumentParams(document, [change])
        self.run(self._tell(self.client.text_document_did_change, params))

    async def _tell(self, tell: Callable[[Any], None], params: Any) -> None:
        tell(params)

    def marks(
        self, uri: str, enough: Callable[[Sequence[types.Diagnostic]], object] = lambda found: True
    ) -> Sequence[types.Diagnostic]:
        """Once they are published, and enough."""
        return self.run(self._marks(uri, enough))

    async def _marks(self, uri: str, enough: Callable[[Sequence[types.Diagnostic]], object]) -> Any:
        end_s = time.monotonic() + LONGEST_S
        while uri not in self.client.diagnostics or not enough(self.client.diagnostics[uri]):
            assert time.monotonic() < end_s, self.client.diagnostics.get(uri)
            await asyncio.sleep(0.02)
        return self.client.diagnostics[uri]

    def ask(self, method: str, uri: str, **params: Any) -> Any:
        kinds = {
            "hover": types.HoverParams, "completion": types.CompletionParams, "inlay_hint": types.InlayHintParams,
            "code_lens": types.CodeLensParams, "code_action": types.CodeActionParams,
        }  # fmt: skip
        document = types.TextDocumentIdentifier(uri)
        return self.run(getattr(self.client, f"text_document_{method}_async")(kinds[method](document, **params)))

    def lenses(self, uri: str) -> list[str]:
        return [lens.command.title for lens in self.ask("code_lens", uri)]

    def hints(self, uri: str, line: int) -> list[str]:
        """Of a line, once there are any."""
        whole = types.Range(types.Position(0, 0), types.Position(999, 0))
        end_s = time.monotonic() + LONGEST_S
        while time.monotonic() < end_s:
            found = [hint for hint in self.ask("inlay_hint", uri, range=whole) if hint.position.line == line]
            if found:
                return [str(hint.label) for hint in found]
            self.run(asyncio.sleep(0.05))
        raise AssertionError("no hint")

    def command(self, name: str, uri: str) -> Any:
        params = types.ExecuteCommandParams(f"tunecast.{name}", [uri])
        found = self.run(self.client.workspace_execute_command_async(params))
        return found if isinstance(found, dict) or found is None else found._asdict()

    def end(self) -> None:
        self.run(self.client.shutdown_session())
        self.runner.close()


MAIN = "from tunecast.cli.main import command\nsys.argv[1:] = ['lsp']\ncommand()"


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    made = Editor(tmp_path_factory.mktemp("editor"), {"showResults": False})
    yield made
    made.end()


def line_of(text: str, word: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if word in line)


def said(found: Sequence[types.Diagnostic]) -> dict[object, types.Diagnostic]:
    return {each.code: each for each in found}


def refuses(found: Sequence[types.Diagnostic]) -> bool:
    return "does-not-fit" in said(found)


def fits(found: Sequence[types.Diagnostic]) -> bool:
    return not {"does-not-fit", "may-not-fit"} & set(said(found))


def test_what_it_can(editor: Editor) -> None:
    provider = editor.capabilities.execute_command_provider
    assert set(provider.commands) == {f"tunecast.{name}" for name in ("plan", "fit", "launch", "trace")}
    assert editor.capabilities.hover_provider and editor.capabilities.inlay_hint_provider


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_does_not_fit_is_marked_and_mended_by_an_action(editor: Editor, name: str) -> None:
    text = FILES[name]
    uri = editor.open(text, name)
    found = said(editor.marks(uri, refuses))["does-not-fit"]
    assert found.severity == types.DiagnosticSeverity.Error and " on the rtx-4090" in found.message
    assert found.range.end.line < text.count("\n")
    assert editor.lenses(uri)[0].startswith("does not fit the rtx-4090, ")
    context = types.CodeActionContext([found])
    actions = editor.ask("code_action", uri, range=found.range, context=context)
    assert actions and actions[0].diagnostics
    (change,) = actions[0].edit.document_changes
    place, after = Text(text), text
    for edit in reversed(change.edits):
        start, end = (place.offset(Position(each.line, each.character)) for each in (edit.range.start, edit.range.end))
        after = after[:start] + edit.new_text + after[end:]
    assert after != text and after.split("\n")[0] == text.split("\n")[0]
    editor.change(uri, after)
    assert not refuses(editor.marks(uri))


class TestOneFile:
    def test_hints_and_hover_say_what_values_cost(self, editor: Editor) -> None:
        uri, line = editor.open(AXOLOTL, "a.yml"), line_of(AXOLOTL, "sequence_len")
        (hint,) = editor.hints(uri, line)
        assert hint.strip().startswith("16384: −") and "GiB" in hint
        hover = editor.ask("hover", uri, position=types.Position(line, 3)).contents.value
        assert "`16384`" in hover and "`65536`" in hover and "activations" in hover
        rate = editor.ask("hover", uri, position=types.Position(line_of(AXOLOTL, "learning_rate"), 3))
        assert rate.contents.value == "moves neither memory nor time"
        assert editor.ask("hover", uri, position=types.Position(0, 0)) is None

    def test_the_comment_changes_the_card(self, editor: Editor) -> None:
        uri = editor.open(AXOLOTL, "a.yml")
        assert refuses(editor.marks(uri))
        editor.change(uri, AXOLOTL.replace("rtx-4090", "h200"))
        assert fits(editor.marks(uri))
        assert editor.lenses(uri)[0].startswith("fits the h200")

    def test_without_a_card_there_is_no_verdict(self, editor: Editor) -> None:
        uri = editor.open(AXOLOTL.partition("\n")[2], "a.yml")
        assert not editor.marks(uri)
        assert editor.lenses(uri) == ["name a card: # tunecast: gpu=rtx-4090", "plan"]

    def test_of_an_unknown_file_nothing_is_said(self, editor: Editor) -> None:
        for name, text in (
            ("compose.yaml", "services:\n  web: {image: x}\n"),
            ("bad.yaml", "a: [1\nb: }"),
            ("a.md", "#"),
        ):
            uri = editor.open(text, name)
            assert not editor.lenses(uri) and not editor.client.diagnostics.get(uri)

    def test_a_half_written_file_is_told_where_it_breaks(self, editor: Editor) -> None:
        uri = editor.open(JOB)
        editor.marks(uri)
        editor.change(uri, JOB.replace("micro_batch: 1", "micro_batch: [1"))
        (mark,) = editor.marks(uri)
        assert mark.code == "unreadable" and "not YAML" in mark.message
        assert mark.range.start.line in (line_of(JOB, "micro_batch"), line_of(JOB, "hardware"))
        editor.change(uri, JOB.replace("32768", "512"), 3)
        assert fits(editor.marks(uri))

    def test_a_value_that_is_refused_is_marked_with_the_remedy(self, editor: Editor) -> None:
        text = JOB.replace("method: lora", "method: lorra").replace("micro_batch: 1", "micro_batches: 1")
        found = editor.marks(editor.open(text))
        lines = {mark.range.start.line: mark.message for mark in found}
        assert "nearest: lora" in lines[line_of(text, "lorra")]
        assert any("micro_batches" in mark.message for mark in found)

    def test_a_card_and_a_model_that_are_not_known(self, editor: Editor) -> None:
        (mark,) = editor.marks(editor.open(AXOLOTL.replace("gpu=rtx-4090", "gpu=rtx-4091"), "a.yml"))
        assert mark.range.start.line == 0 and "rtx-4090" in mark.message
        uri = editor.open(AXOLOTL.replace("meta-llama/Llama-3.2-1B", "nobody/No-Such-7Q"), "a.yml")
        (mark,) = editor.marks(uri)
        assert mark.range.start.line == 1 and "offline, and not in the local cache" in mark.message

    def test_what_is_not_understood_is_information(self, editor: Editor) -> None:
        uri = editor.open(AXOLOTL.replace("32768", "512") + "no_such_key: 3\n", "a.yml")
        (mark,) = editor.marks(uri)
        assert mark.severity == types.DiagnosticSeverity.Information
        assert mark.message.startswith("no_such_key: nothing here reads this key")
        assert mark.range.start.line == AXOLOTL.count("\n")

    def test_columns_are_utf16_units(self, editor: Editor) -> None:
        text = '{"id": "😀😀", "model": "llama-3.2-1b", "seq_len": 65536, "hardware": {"gpu": "rtx-4090"}}'
        (mark,) = editor.marks(editor.open(text, "a.json"))
        start = text.index('"seq_len"') + 2  # two letters beyond the basic plane come before it
        assert (mark.range.start.character, mark.range.end.character) == (start, start + len('"seq_len": 65536'))

    def test_what_stands_beside_the_file_is_read_from_the_disk(self, editor: Editor) -> None:
        uri = editor.open(JOB.replace("llama-3.2-1b", "./mine"))
        assert "no such file" in editor.marks(uri)[0].message
        folder = editor.folder / str(editor.number) / "mine"
        folder.mkdir()
        folder.joinpath("config.json").write_text(
            '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
            ' "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000}'
        )
        editor.change(uri, JOB.replace("llama-3.2-1b", "./mine").replace("32768", "512"))
        assert fits(editor.marks(uri))
        assert editor.lenses(uri)[0].startswith("fits")

    def test_a_large_file_is_left_alone(self, editor: Editor) -> None:
        assert not editor.lenses(editor.open(JOB + "#" * 2**20))


class TestCompletion:
    def labels(self, editor: Editor, text: str, name: str, line: int, character: int) -> list[str]:
        uri = editor.open(text, name)
        found = editor.ask("completion", uri, position=types.Position(line, character))
        return [item.label for item in found.items] if found else []

    def test_keys_of_the_framework(self, editor: Editor) -> None:
        labels = self.labels(editor, AXOLOTL + "gra", "a.yml", AXOLOTL.count("\n"), 3)
        assert "sample_packing" in labels and "sequence_len" not in labels and "seq_len" not in labels

    def test_fields_of_our_own_job(self, editor: Editor) -> None:
        assert {"optimizer", "quantization"} <= set(self.labels(editor, JOB + "op", "job.yaml", JOB.count("\n"), 2))

    def test_values(self, editor: Editor) -> None:
        line = line_of(AXOLOTL, "optimizer")
        assert "paged_adamw_8bit" in self.labels(editor, AXOLOTL, "a.yml", line, len("optimizer: "))
        assert "meta-llama/Llama-3.1-8B" in self.labels(editor, AXOLOTL, "a.yml", 1, len("base_model: "))
        assert "h100-sxm-80gb" in self.labels(editor, AXOLOTL, "a.yml", 0, len("# tunecast: gpu="))
        assert "h100-sxm-80gb" in self.labels(editor, JOB, "job.yaml", line_of(JOB, "gpu:"), len("  gpu: "))


class TestCommands:
    def test_a_launch_starts_nothing(self, editor: Editor) -> None:
        uri = editor.open(JOB, "job.yaml")
        found = editor.command("launch", uri)
        path = str(editor.folder / str(editor.number) / "job.yaml")
        assert found["command"] == ["tunecast", "launch", path, "--on", "local", "--dry-run"]
        assert "Commands" in found["text"] and "job.yaml" in found["title"]

    def test_a_plan_is_of_the_buffer(self, editor: Editor) -> None:
        """No such file is on the disk."""
        uri = editor.open(AXOLOTL.replace("32768", "512").replace("rtx-4090", "rtx-4090 eu within=9d"), "a.yml")
        found = editor.command("plan", uri)
        assert found["command"][3:] == ["--gpu", "rtx-4090", "--within", "9d", "--eu"]
        assert "512 tokens" in found["text"]

    def test_what_is_refused_is_said(self, editor: Editor) -> None:
        found = editor.command("fit", editor.open(JOB.replace("llama-3.2-1b", "nobody/none"), "job.yaml"))
        assert found["json"] is None and "offline" in found["text"]
        assert editor.command("trace", editor.open(JOB))["text"].startswith("only Python scripts are traced")
        assert editor.command("plan", "file:///no/such.yaml") is None

    def test_scripts_have_a_lens_over_their_training(self, editor: Editor) -> None:
        uri = editor.open("from trl import SFTConfig\nx = SFTConfig(\n", "train.py")
        (lens,) = editor.ask("code_lens", uri)
        assert (lens.range.start.line, lens.command.command, [*lens.command.arguments]) == (1, "tunecast.trace", [uri])
        assert "not saved" in editor.command("trace", uri)["text"]

    def test_a_trace_ends_with_its_request(self, editor: Editor) -> None:
        text = "import time\nwhile True:\n    time.sleep(1)\n"
        uri = editor.open(text, "train.py")
        path = to_fs_path(uri) or ""
        Path(path).write_text(text)
        editor.run(self.cancelled(editor, uri, path))
        end_s = time.monotonic() + GONE_S
        while traced(path):
            assert time.monotonic() < end_s, "it still runs"
            time.sleep(0.1)

    async def cancelled(self, editor: Editor, uri: str, path: str) -> None:
        """Once it runs."""
        params = types.ExecuteCommandParams("tunecast.trace", [uri])
        command = asyncio.ensure_future(editor.client.workspace_execute_command_async(params))
        while not traced(path):
            assert not command.done(), command.result()
            await asyncio.sleep(0.05)
        (number,) = [each for each, future in editor.client.protocol._request_futures.items() if not future.done()]
        editor.client.protocol.notify("$/cancelRequest", types.CancelParams(id=number))
        with pytest.raises(JsonRpcRequestCancelled):
            await command


def traced(path: str) -> bool:
    """Whether a process is at work on it."""
    words = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout
    return f" -- {path}\n" in words


def test_a_byte_order_mark_is_no_change_that_is_not_saved(tmp_path: Path) -> None:
    """Editors keep it to themselves: such a script could never be traced."""
    path = tmp_path / "train.py"
    path.write_bytes("\ufeffimport torch\r\n".encode())
    assert saved_text(path) == "import torch\r\n"


def test_settings_name_the_card_and_switch_it_off(tmp_path: Path) -> None:
    editor = Editor(tmp_path, {"gpu": "h200", "showResults": False})
    try:
        uri = editor.open(AXOLOTL.partition("\n")[2], "a.yml")
        assert fits(editor.marks(uri)) and editor.lenses(uri)[0].startswith("fits the h200")
        own = editor.open(JOB, "job.yaml")
        assert refuses(editor.marks(own)), "a file that names a card keeps it"
        for given, first in (({"gpu": "rtx-4090"}, "does not fit the rtx-4090"), ({"enable": False}, "")):
            settings = types.DidChangeConfigurationParams({"tunecast": given})
            editor.run(editor._tell(editor.client.workspace_did_change_configuration, settings))
            lenses = editor.lenses(uri)
            assert lenses[0].startswith(first) if first else lenses == []
    finally:
        editor.end()
