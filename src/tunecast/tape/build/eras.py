"""What older releases of transformers do otherwise with memory, each with the release that changed it.

Read in the packages themselves (4.43 to 4.57, 5.0, 5.17 to 5.22), before 5 of Llama, Mistral, Qwen 2 and Gemma; the
tracer on 4.45.2, 4.48.1 and 4.57.1 (tests/golden/stacks/transformers), 5.17.0 and 5.22.2 (tests/trace) is the referee.
"""

from __future__ import annotations

from typing import Any

from tunecast.job.job import Job
from tunecast.job.releases import RELEASES, minor
from tunecast.job.stacks import stack_of
from tunecast.records import dataclass

FOLLOWED = ("llama", "mistral", "qwen2", "gemma")
"""Architectures whose older code was read."""
READ_FROM_5_17 = (
    "deepseek_v4", "falcon_h1", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "granitemoehybrid", "glm_moe_dsa",
    "kimi_linear", "minimax", "nemotron_h", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next",
)  # fmt: skip
"""Architectures whose code before was not."""
ROTATED_IN_LAYERS = ("mistral", "gemma")
TORCH_OF_ITS_DAY = (((4, 46), "2.4"), ((4, 49), "2.5"), ((4, 52), "2.6"), ((4, 56), "2.7"), ((5, 0), "2.8"))
"""Before which release of transformers which torch was the newest: 2.5 came out in October 2024, 2.6 in January, 2.7 in
April and 2.8 in August 2025."""


def _before(*release: int) -> Any:
    return property(lambda era: era.release < release)


def _since(*release: int) -> Any:
    return property(lambda era: era.release >= release)


@dataclass(frozen=True)
class Era:
    """A release, and what it does that the newest does not."""

    release: tuple[int, int] = minor(RELEASES["transformers"].newest)

    reentrant = _before(5, 0)
    """modeling_utils.py, `gradient_checkpointing_enable`: the kind of checkpointing where nobody says."""

    gives_input_gradient = _since(5, 0)
    """modeling_utils.py, `gradient_checkpointing_enable`: the embedding's output needs a gradient; before, with PEFT
    alone."""

    @property
    def torch(self) -> str | None:
        """What it was used with, where nobody says; None: that of today."""
        return next((torch for before, torch in TORCH_OF_ITS_DAY if self.release < before), None)

    @property
    def fsdp_version(self) -> int:
        """training_args.py: `fsdp_config["version"]` where nobody says."""
        return 2 if self.release >= (5, 0) else 1

    @property
    def heeds_sync_each_batch(self) -> bool:
        """trainer.py: `accelerator.accumulate` did; its own `no_sync` (4.46) did not until 5.2."""
        return self.release < (4, 46) or self.release >= (5, 2)

    zeroes_other_ranks = _since(5, 6)
    """modeling_utils.py, `_move_missing_keys_from_meta_to_device`: ranks that are to get FSDP's weights from the first
    had `empty_like`, which takes no memory; since then `zeros_like`, which does."""
    packs_kin_of_linear = _before(5, 5)
    """integrations/bitsandbytes.py, `replace_with_bnb_linear`: layers whose class is made of nn.Linear are quantised;
    since then of those nn.Linear alone (Falcon's and Llama 4's routers stay as they are)."""
    one_table = _before(5, 0)
    """`original_inv_freq` was the table itself, not a copy."""
    scales_embeddings_in_model = _before(5, 0)
    """Gemma: before `GemmaTextScaledWordEmbedding`."""
    rotates_by_product = _before(5, 19)
    """The rotary embedding's angles: a batched matrix product, since then positions times frequencies."""
    fills_sentinels = _before(5, 18)
    """integrations/moe.py: rows of experts on other ranks are filled with zeros, since then only where experts are
    spread over ranks (`_is_expert_parallel`)."""
    reads_rotary_dim = _since(5, 18)
    """configuration_minimax_m2.py: `rotary_dim` of a config.json; before, all of a head turned."""
    contracts_by_einsum = _since(5, 18)
    """models/granitemoehybrid, `mamba2_chunk_scan`: products of matrices; before, of elements, summed up."""
    nemotron_norms_in_float32 = _since(5, 18)
    """modeling_nemotron_h.py, `NemotronHRMSNorm`: the weight is multiplied in before the result takes its dtype."""
    names_streams_once = _since(5, 18)
    """modeling_deepseek_v4.py, `DeepseekV4HyperConnection`: what is mixed takes the name of what it is made of."""
    deepseek_v4_norms_in_float32 = _since(5, 20)
    """`DeepseekV4RMSNorm` in the same file: the weight is multiplied in before the result takes its dtype."""
    looks_at_rows_first = _since(5, 20)
    """modeling_flash_attention_utils.py, `_is_packed_sequence`: several rows are no packed one, whatever positions say;
    before, positions were computed all the same."""
    drops_packing_answer = _since(5, 19)
    """modeling_flash_attention_utils.py, `_flash_attention_forward`: whether a row is packed has no name."""
    rounds_by_largest_leaf = _since(5, 18)
    """integrations/accelerate.py, `get_balanced_memory`: a card's share is even but for a layer or the largest leaf;
    before, a layer or the mean one."""
    refuses_capped_sdpa = _since(5, 21)
    """modeling_gemma2.py: `_supports_sdpa = False`, since sdpa caps no scores; before, it ran without the cap."""
    makes_slopes_apart = _since(5, 21)
    """modeling_bloom.py, `_get_alibi_slopes`: what the slopes are made of goes before they are used."""
    checks_per_layer_ids = _since(5, 21)
    """modeling_gemma3n.py, `get_per_layer_inputs`: tokens beyond the layers' table become the first; before, only the
    model with other parts saw to that."""
    chooses_table = _since(5, 21)
    """modeling_rope_utils.py, `longrope_frequency_update`: `torch.where` instead of a branch."""
    trains_on_fp8 = _since(5, 22)
    """quantizer_finegrained_fp8.py, `is_trainable`; finegrained_fp8.py, `FP8LinearFunction`."""
    keeps_packed_dtype = _since(5, 21)
    """core_model_loading.py, `get_new_dtype`: a weight in FP8 that is dequantised comes to the card as it is; before,
    in the model's dtype, but for experts."""
    adds_positions = _since(5, 0)
    """Positions are counted from what a cache holds; before, `cache_position` was made that way at once."""
    sums_mask = _since(5, 0)
    """How masking_utils.py sees that nothing is padded: a sum, before that `all`."""
    masks_in_model = _before(4, 53)
    """Before masking_utils.py each model had an `_update_causal_mask`."""
    windows_with_sdpa = _since(4, 40)
    """modeling_mistral.py: 4.38.2 gives `_prepare_4d_causal_attention_mask_for_sdpa` no window, 4.40.2 does."""
    compares_positions = _before(4, 55)
    """modeling_flash_attention_utils.py: packed rows are seen by differences, before `_is_packed_sequence`."""
    scales_last = _before(4, 51)
    """Both the cosines and the sines were made before either was scaled."""
    layers_by_position = _before(4, 52)
    """Before `GradientCheckpointingLayer` a model gave its layers' tensors to `checkpoint` itself."""
    shifts_logits = _before(4, 49)
    """loss/loss_utils.py, `ForCausalLMLoss`: a copy of the logits but the last; since then labels are padded."""
    repeats_heads = _before(4, 54)
    """integrations/sdpa_attention.py before `use_gqa_in_sdpa`: keys and values once for every query head."""

    @property
    def copies_heads(self) -> bool:
        """The same file made queries, keys and values contiguous, mask or not."""
        return (4, 48) <= self.release < (4, 56)

    attends_by_class = _before(4, 48)
    """One class of attention a kernel, before `ALL_ATTENTION_FUNCTIONS`."""
    table_in_layers = _before(4, 48)
    """Every attention holds a rotary table, used or not."""

    def rotates_in_layers(self, model_type: str) -> bool:
        """Cosines and sines are made anew in each layer."""
        return self.release < (4, 48) and model_type in ROTATED_IN_LAYERS

    def repeats_for_flash(self, model_type: str) -> bool:
        """MistralFlashAttention2, Qwen2FlashAttention2: the kernel shares keys between heads, they did not."""
        return self.release < (4, 48) and model_type in ("mistral", "qwen2")

    def widens_logits(self, model_type: str) -> bool:
        """`logits = logits.float()` in the model: nobody holds the 16-bit ones. Mistral kept its own loss longer."""
        return self.release < ((4, 48) if model_type == "mistral" else (4, 46))


def era_of(job: Job) -> Era:
    """Of the release it names, else of the one its stack follows."""
    release = job.transformers_version or stack_of(job).follows.get("transformers")
    return Era() if release is None else Era(minor(release))


def guesses(era: Era, model_type: str) -> list[str]:
    """What is taken for granted about a release nobody read that closely."""
    release, newest = (".".join(map(str, each)) for each in (era.release, Era().release))
    if model_type in READ_FROM_5_17 and era.release < (5, 17):
        return [f"of transformers {release} the layers of {model_type} of 5.17 are taken"]
    if era.release >= (5, 0) or model_type in FOLLOWED:
        return []
    return [f"of transformers {release} the loss and checkpointing are taken, the layers of {model_type} of {newest}"]
