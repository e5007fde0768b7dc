"""TRL's GRPOTrainer and RLOOTrainer on paper (trl/trainer/grpo_trainer.py and rloo_trainer.py of 1.16.0).

Every `steps_per_generation` micro-batches the model writes completions for as many batches of prompts, which are scored
and kept on the card (`_buffered_inputs`) until they have been trained on `iterations` times. Numbers of which there is
one a completion (rewards, advantages, metrics) are left out but for the advantages: they are some bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.stacks import Refusals, trl
from tunecast.tape.build.stacks.trainer import Batch, begin_pass, take_steps
from tunecast.tape.build.stacks.trl import model, release_of, scheme, set_up
from tunecast.tape.build.tasks.generation import generate, last_logits
from tunecast.tape.build.tasks.reference import call
from tunecast.tape.build.tasks.rollout_losses import (
    Inputs,
    global_masked_mean,
    grpo_loss,
    rloo_loss,
    sequence_ratio,
    tell_difference,
)
from tunecast.tape.build.tasks.rollout_models import (
    OF_POLICY,
    Others,
    inner_logits,
    not_recomputed,
    refuse_gathering,
    synchronize_weights,
)
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import PASS, Phase
from tunecast.tape.symbols import starts

__all__ = ["REFUSES", "defaults", "model", "scheme", "setup", "train"]

REFUSES: Refusals = trl.REFUSES
IMAGES = "images beside rollouts: each completion is taken to have those of its prompt; nobody traced them"
RLOO_DEFAULTS = {"rl.beta": 0.05, "rl.generations": 2}
"""trl/trainer/rloo_config.py."""


def setup(job: Job, given: Setup) -> Setup:
    """As SFTTrainer's, whose rows may be packed; these are not."""
    return trl.setup(replace_unchecked(job, data=replace_unchecked(job.data, packing=False)), given)


def defaults(job: Job) -> dict[str, Any]:
    return {**trl.defaults(job), **(RLOO_DEFAULTS if job.task == "rloo" else {})}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    others = Others(job, config, machine)
    policy, parameters, optimizer = set_up(job, config, machine, release_of(job, machine.era), others.prepare)
    rollouts = Rollouts(job, policy, others, lengths)
    take_steps(
        job, policy, parameters, optimizer, lengths, rollouts.compute_loss, prepare_inputs=rollouts.prepare_inputs,
        repeats=rollouts.generate_every >= job.grad_accum, begins=False,
    )  # fmt: skip
    rollouts.let_go()
    machine.end()


class Rollouts:
    """What of a trainer stays from one micro-batch to the next."""

    def __init__(self, job: Job, policy: Any, others: Others, lengths: Sequence[int]) -> None:
        self.job, self.policy, self.others, self.machine = job, policy, others, policy.machine
        self.lengths = lengths
        self.steps_per_generation = job.rl.steps_per_generation or job.grad_accum
        self.generate_every = self.steps_per_generation * job.rl.iterations
        self.completion_length = job.rl.completion_length
        self.is_rloo = job.task == "rloo"
        self.by_vllm = job.rl.engine == "vllm"
        self.corrects = self.by_vllm and not self.is_rloo
        """Whether losses are weighed by how likely vLLM held what it drew (`vllm_importance_sampling_correction`)."""
        if not self.by_vllm:
            refuse_gathering(job)
        extras = () if self.machine.pictures is None else self.machine.pictures.extras
        self.entries = {extra.name: extra.shape(1, 1)[0] for extra in extras}
        """What images bring to a batch: how many entries of the first dimension each row has."""
        if extras:
            self.machine.guesses[IMAGES] = None
        self._buffered_inputs: list[dict[str, Tensor]] = []
        self._before_training = Phase.OTHER
        """What the model's training pass follows."""

    @property
    def keeps_old_logps(self) -> bool:
        """Whether the model may have stepped since it wrote, or another engine wrote."""
        return self.is_rloo or self.corrects or self.job.grad_accum % self.generate_every != 0

    def let_go(self) -> None:
        """As the next generation does."""
        self._buffered_inputs = []

    # ------------------------------------------------------------------------------------------------ generation

    def prepare_inputs(self, number: int) -> Batch:
        """`_prepare_inputs` of micro-batch `number` of its optimizer step."""
        step = self.machine.step * self.job.grad_accum + number
        self._before_training = Phase.OTHER
        if step % self.generate_every == 0:
            generation_batch = self.generate_and_score_completions()
            generation_batch = shuffled(generation_batch, self.entries)
            self._buffered_inputs = split(generation_batch, self.steps_per_generation, self.entries)
            self._before_training = Phase.SCORE
        return (self._buffered_inputs[step % self.steps_per_generation],)

    def generate_and_score_completions(self) -> dict[str, Tensor]:
        """`_generate_and_score_completions`."""
        job, machine = self.job, self.machine
        rows = job.micro_batch * self.steps_per_generation
        completion_length = self.completion_length
        prompt_length = prompt_length_of(job, self.lengths[machine.step])
        if self.by_vllm:
            machine.phase, machine.in_forward, machine.module = Phase.OTHER, False, ""
            synchronize_weights(self.policy)
            machine.phase = Phase.SCORE
        else:
            self.generate_single_turn(rows, prompt_length)
        prompt_ids, prompt_mask = [machine.run("_to_copy", (), (rows, prompt_length), INT64) for _ in range(2)]
        completion_ids, completion_mask = [
            machine.run("_to_copy", (), (rows, completion_length), INT64) for _ in range(2)
        ]
        sampling_per_token_logps = importance_sampling_ratio = None
        if self.corrects:
            sampling_per_token_logps = machine.run("_to_copy", (), (rows, completion_length), FLOAT32)
        num_items_in_batch = completion_mask.sum(range(2)).sum(())
        prompt_completion_ids = F.cat((prompt_ids, completion_ids), 1)
        attention_mask = F.cat((prompt_mask, completion_mask), 1)
        prompt_inputs, images = self.forward_kwargs(rows, prompt_length)
        old_per_token_logps = ref_per_token_logps = None
        with machine.no_grad(), not_recomputed(self.policy):
            if self.keeps_old_logps:
                old_per_token_logps, _ = self.per_token_logps(
                    self.policy, prompt_completion_ids, attention_mask, OF_POLICY, images
                )
                if sampling_per_token_logps is not None:
                    importance_sampling_ratio, _per_token_logps_diff = sequence_ratio(
                        old_per_token_logps, sampling_per_token_logps, completion_mask
                    )
                if self.is_rloo:
                    old_logps = (old_per_token_logps * completion_mask).sum(1)
            if job.rl.beta:
                with self.others.referring(self.policy) as (asked, outputs):
                    ref_per_token_logps, _ = self.per_token_logps(
                        asked, prompt_completion_ids, attention_mask, outputs, images
                    )
                del asked
            if job.distill.teacher is not None and job.distill.place == "card":
                with self.others.teaching(self.policy) as (asked, outputs):
                    self.per_token_logps(asked, prompt_completion_ids, attention_mask, outputs, images)
                del asked
        self.others.score(rows, prompt_length + completion_length)
        if self.is_rloo and job.rl.beta:
            assert old_per_token_logps is not None and ref_per_token_logps is not None
            per_token_kl = old_per_token_logps - ref_per_token_logps
            (per_token_kl * completion_mask).sum(-1)
        advantages = machine.run("nan_to_num", (), (rows,), FLOAT32)
        if self.is_rloo and job.rl.beta:
            global_masked_mean(per_token_kl, completion_mask)
        if sampling_per_token_logps is not None and old_per_token_logps is not None:
            _held = tell_difference(old_per_token_logps, sampling_per_token_logps, completion_mask)
        output = {
            "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids,
            "completion_mask": completion_mask, **images,
        }  # fmt: skip
        del prompt_inputs
        if self.is_rloo:
            return {**output, "old_logps": old_logps, "advantages": advantages}
        output |= {"advantages": advantages, "num_items_in_batch": num_items_in_batch}
        if old_per_token_logps is not None:
            output["old_per_token_logps"] = old_per_token_logps
        if sampling_per_token_logps is not None and importance_sampling_ratio is not None:
            output["importance_sampling_ratio"] = importance_sampling_ratio
            output["sampling_per_token_logps"] = sampling_per_token_logps
        if ref_per_token_logps is not None:
            output["ref_per_token_logps"] = ref_per_token_logps
        return output

    def forward_kwargs(self, rows: int, prompt_length: int) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        """What the processor makes of prompts once more: tokens and mask that nothing reads, and images, whose
        numbers of a token each go on over completions."""
        machine = self.machine
        if machine.pictures is None:
            return (), {}
        prompt_inputs = [machine.run("_to_copy", (), (rows, prompt_length), INT64) for _ in range(2)]
        images = images_in(machine, image_tensors(machine, rows, prompt_length))
        for extra in machine.pictures.extras:
            if extra.per_token:
                zeros = machine.run("new_zeros", (), (rows, self.completion_length, *extra.rest), INT64)
                images[extra.name] = F.cat((images[extra.name], zeros), 1)
        return prompt_inputs, images

    def generate_single_turn(self, rows: int, prompt_length: int) -> None:
        """`_generate_single_turn`: completions go to the host."""
        machine, completion_length = self.machine, self.completion_length
        machine.phase = Phase.OTHER
        input_ids, attention_mask = [machine.run("_to_copy", (), (rows, prompt_length), INT64) for _ in range(2)]
        images = images_in(machine, image_tensors(machine, rows, prompt_length))
        with not_recomputed(self.policy):
            prompt_completion_ids = generate(
                self.policy, input_ids, attention_mask, completion_length, self.forward(), **images
            )
        is_eos = machine.run("isin", (prompt_completion_ids,), (rows, completion_length), BOOL)
        eos_idx = machine.run("full", (), (rows,), INT64)
        is_eos.to(INT32)
        sequence_indices = machine.run("arange", (), (completion_length,), INT64)
        completion_mask = machine.run("le", (sequence_indices, eos_idx), (rows, completion_length), BOOL).to(INT32)
        completion_mask.to(BOOL)
        machine.synchronize()

    def forward(self) -> Any:
        """How `generate()` calls the model: PEFT's gives the call to the model inside, which accelerate does not know;
        any other is called as accelerate wrapped it (`convert_outputs_to_fp32`)."""
        if self.job.method != "full":
            return inner_logits
        return self.wrapped_logits

    def wrapped_logits(self, model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
        logits = self.machine.scheme.call(model, partial(last_logits, **images), input_ids, attention_mask)
        return logits if self.machine.scheme.autocast is None else logits.float()

    # --------------------------------------------------------------------------------------------------- the loss

    def per_token_logps(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, outputs: Sequence[str],
        images: Mapping[str, Tensor], is_trained: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """`_get_per_token_logps_and_entropies`: as many rows at a time as are trained on."""
        machine, completion_length, batch_size = self.machine, self.completion_length, self.job.micro_batch
        all_logps, all_entropies = [], []
        for start in starts(input_ids.shape[0], batch_size):
            input_ids_batch = narrow(input_ids, 0, start, start + batch_size)
            attention_mask_batch = narrow(attention_mask, 0, start, start + batch_size)
            labels = input_ids_batch.masked_fill(attention_mask_batch.eq(0), -100)
            machine.launch("fill_", (), INT64, labels.nbytes)
            count = batch_size * completion_length
            if is_trained:
                begin_pass(machine)
            else:
                machine.of_host(PASS)
            images_batch = {
                name: narrow(x, 0, start * self.entries[name], (start + batch_size) * self.entries[name])
                for name, x in images.items()
            }
            found = call(model, (input_ids_batch, attention_mask_batch), labels, outputs, count, **images_batch)
            length = labels.shape[1] - 1
            all_logps.append(narrow(found.log_probs, 1, length - completion_length, length))
            if is_trained:
                all_entropies.append(narrow(found.entropy, 1, length - completion_length, length))
        logps = F.cat(all_logps, 0)
        entropies = F.cat(all_entropies, 0) if is_trained else None
        return logps, entropies

    def compute_loss(self, job: Job, model: Any, batch: Any, num_items_in_batch: None) -> Tensor:
        inputs: Inputs = batch[0]
        machine = self.machine
        machine.phase, machine.in_forward = self._before_training, False
        input_ids = F.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
        attention_mask = F.cat((inputs["prompt_mask"], inputs["completion_mask"]), 1)
        images = {name: inputs[name] for name in self.entries}
        per_token_logps, entropies = self.per_token_logps(model, input_ids, attention_mask, OF_POLICY, images, True)
        if self.is_rloo:
            return rloo_loss(inputs, per_token_logps, entropies)
        return grpo_loss(job, inputs, per_token_logps, entropies)


def prompt_length_of(job: Job, length: int) -> int:
    """Of rows of so many tokens, prompt and completion."""
    completion_length, given = job.rl.completion_length, job.rl.prompt_length
    if length <= completion_length:
        got = f"got {completion_length} of rows of {length} tokens, prompt and completion"
        raise UsageError.at("rl.completion_length", f"{got}; allowed: less than seq_len")
    if given is not None and given + completion_length != length:
        got = f"got {given} before completions of {completion_length} in rows of {length} tokens"
        raise UsageError.at("rl.prompt_length", f"{got}; allowed: null, or no seq_len")
    return length - completion_length


def shuffled(batch: Mapping[str, Tensor], entries: Mapping[str, int]) -> dict[str, Tensor]:
    """`shuffle_sequence_dict`: a copy of all that has rows. Images are lists of views by then
    (`split_pixel_values_by_grid`)."""
    return {
        name: x.machine.run("index", (x,), x.shape, x.dtype) if x.dim() and name not in entries else x
        for name, x in batch.items()
    }


def split(batch: Mapping[str, Tensor], count: int, entries: Mapping[str, int]) -> list[dict[str, Tensor]]:
    """`split_tensor_dict`: views, and of images a copy for each micro-batch (`unsplit_pixel_values_by_grid`)."""
    rows = batch["prompt_ids"].shape[0] // count

    def part(name: str, x: Tensor, i: int) -> Tensor:
        if not x.dim():
            return x
        each = rows * entries.get(name, 1)
        found = narrow(x, 0, i * each, (i + 1) * each)
        return x.machine.run("cat", (found,), found.shape, found.dtype) if name in entries else found

    return [{name: part(name, x, i) for name, x in batch.items()} for i in range(count)]
