"""Names that are listed nowhere as they are: by which rule they mean a bundled model, and which mean none."""

from __future__ import annotations

import pytest

from tunecast.errors import NotResolved
from tunecast.job.model import resolve_model
from tunecast.job.registry import bundled_name, bundled_spelling
from tunecast.job.spellings import SpellingRules, plain, repository_of


@pytest.mark.parametrize(
    ("given", "key", "stored"),
    [
        ("Meta-Llama-3-8B-Instruct-bnb-4bit", "llama-3-8b", ("4-bit (bitsandbytes)",)),
        ("Qwen3-14B-Base-unsloth-bnb-4bit", "qwen3-14b", ("4-bit (bitsandbytes)",)),
        ("Meta-Llama-3.1-405B-BNB-NF4-BF16", "llama-3-1-405b", ("4-bit (bitsandbytes)", "16-bit")),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0-3", ()),
        ("Qwen2_5-0_5B-Instruct", "qwen2-5-0-5b", ()),
        ("Qwen2.5-VL-72B-Instruct-GPTQ-Int4", "qwen2-5-vl-72b", ("quantised (GPTQ)",)),
        ("gemma-3-4b-it-4bit", "gemma-3-4b", ("quantised",)),
        ("Qwen3-14B-FP8", "qwen3-14b", ("8-bit floating point",)),
        ("Qwen3-4B-Instruct-2507", "qwen3-4b-2507", ()),
        ("", "", ()),
    ],
)
def test_what_leaves_a_shape_as_it_is(given: str, key: str, stored: tuple[str, ...]) -> None:
    assert plain(given) == (key, stored)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("unsloth/Qwen2.5-Coder-14B-Instruct", "qwen2.5-coder-14b"),
        ("LLM-Research/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("ZhipuAI/GLM-4-9B-0414", "glm-4-9b"),
        ("mlx-community/Qwen3-8B-4bit", "qwen3-8b"),
        ("TheBloke/Llama-2-7B-GPTQ", "llama-2-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
        ("google/gemma-2-27b-pt", "gemma-2-27b"),
        ("QWEN3-8B", "qwen3-8b"),
        ("deepseek-v32", "deepseek-v3.2"),  # as transformers writes it
        ("models/Llama-2-7b", "llama-2-7b"),  # a folder, which is nobody's name
        ("qwen3-8b-awq", "qwen3-8b"),
    ],
)
def test_by_a_rule(given: str, name: str) -> None:
    assert bundled_name(given) == name


@pytest.mark.parametrize(
    "given",
    [
        "someone/Qwen3-8B",  # anyone may call a model that
        "NousResearch/Hermes-3-Llama-3.1-8B",  # a fine-tune's own name
        "Qwen/Qwen3-8B-Fable",
        "unsloth/mistral-7b",  # of which version it does not say
        "codellama/CodeLlama-7b-Python-hf",  # its vocabulary differs
        "../models/Qwen3-8B",
        "models/Llama-27b",
        "models/Llama-2-7b-mine",
        "/",
        "instruct",
    ],
)
def test_by_none(given: str) -> None:
    assert bundled_name(given) is None


def test_a_name_that_two_models_would_answer_to_answers_to_none() -> None:
    rules = SpellingRules([("a/One-7B-Instruct", "one"), ("a/One-7B-Base", "other"), ("a/Two-7B", "two")])
    assert rules.match("a/One-7B") is None
    assert rules.match("a/Two-7B-Chat") is not None


def test_the_rule_and_the_weights_are_told() -> None:
    found = bundled_spelling("unsloth/Qwen2.5-Coder-7B-Instruct-bnb-4bit")
    assert found is not None
    assert found.because == "unsloth publishes others' models under their names"
    model = resolve_model("unsloth/Qwen2.5-Coder-7B-Instruct-bnb-4bit", offline=True)
    assert model.source == "bundled (qwen2.5-coder-7b)"
    stands_in, stored = model.notes
    assert stands_in.endswith("stands in for it: unsloth publishes others' models under their names")
    assert stored.endswith("by its name the weights are stored otherwise (4-bit (bitsandbytes))")
    assert resolve_model("Qwen3-8B").notes == ()  # a listed name's last part is no guess
    [note] = resolve_model("Qwen3-8B-AWQ").notes[:1]
    assert note.startswith("Qwen3-8B-AWQ: the bundled qwen3-8b stands in for it: its name is that model's")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tmp/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),  # torchtune's configurations
        ("checkpoints/meta-llama/Llama-3.2-1B", "llama-3.2-1b"),  # litgpt's
        ("~/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "qwen3-8b"),
        ("./models/gemma-2-9b-it/", "gemma-2-9b"),
    ],
)
def test_a_folder_that_is_elsewhere(path: str, name: str) -> None:
    model = resolve_model(path, offline=True)
    assert model.source == f"bundled ({name})"
    assert model.notes[0].startswith(f"{path} is not on this machine; the bundled {name} stands in for it")


def test_a_folder_of_another_name_is_missed() -> None:
    with pytest.raises(NotResolved, match="no such file or folder"):
        resolve_model("/data/my-finetune", offline=True)
    assert repository_of("///") == ""


def test_a_folder_of_models_is_told_not_to_be_here() -> None:
    """Whether or not the Hub could be asked: it is no repository."""
    for offline in (True, False):
        model = resolve_model("models/Llama-2-7b", offline=offline)
        told = "is not on this machine; the bundled llama-2-7b stands in for it: its folder is named for that model"
        assert model.notes == (f"models/Llama-2-7b {told}",)
