"""TRL's PPOTrainer on paper (trl/experimental/ppo/ppo_trainer.py of 1.12.0, which later releases no longer have).

Four models: the policy, a reference (the policy without its adapters, or a copy), one that rewards, and one that gives
each token a value, which is trained whole beside the policy (`PolicyAndValueWrapper`). A batch is as many micro-batches
as an optimizer step has; its completions are written once, and `iterations` optimizer steps are taken on them. The
scores of all tokens that could have been written are kept until the next batch is: `logitss` of `train` is a name that
nothing lets go of. Numbers of which there is one a completion are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.further import REWARD, further_config
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.build.stacks import TRACE_INSTEAD, Refusals, trl
from tunecast.tape.build.stacks.trainer import Batch, begin_pass, take_steps
from tunecast.tape.build.stacks.trl import model, release_of, scheme, set_up
from tunecast.tape.build.tasks.generation import generate
from tunecast.tape.build.tasks.ppo_losses import (
    advantages_of,
    logits_of_responses,
    note_entropy,
    ppo_loss,
    selective_log_softmax,
)
from tunecast.tape.build.tasks.ppo_models import PpoModels, policy_and_value
from tunecast.tape.build.tasks.rollout_models import inner_logits, not_recomputed
from tunecast.tape.build.tasks.rollouts import prompt_length_of, setup
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import PASS, Phase
from tunecast.tape.symbols import starts

__all__ = ["REFUSES", "defaults", "model", "scheme", "setup", "train"]

REFUSES: Refusals = trl.REFUSES
PPO_DEFAULTS = {"rl.iterations": 4, "rl.beta": 0.05}
"""trl/experimental/ppo/ppo_config.py: `num_ppo_epochs`, `kl_coef`."""
ROLLOUT_ROWS = 64
"""`local_rollout_forward_batch_size`: rows that are written, and scored, at a time."""
UNTRACED = "PPO follows trl 1.12's PPOTrainer, which later releases no longer have; nobody traced it"
OTHER_STACK = "{stack} is taken to do PPO as TRL 1.12 does, with a value model of its own beside the policy"
VALUE_HEAD = (
    "{stack} is taken to do PPO as TRL 1.12 does; its own trainer puts a value head on the policy in place of a value "
    "model, and holds less"
)
OWN_SIZE = "rl.reward_model: the models that reward and value are taken to be of the policy's own size, none is named"
AS_REWARD = "the value model is taken to be of the reward model's size, as in TRL's script, and in the policy's dtype"
PLAIN = "quantization: the models that reward and value are taken to be plain, as they must be to be trained"
RECOMPUTED = (
    "gradient_checkpointing: PPOTrainer switches it on nowhere; the policy is taken to have it, as a script may "
    "switch it on, the value model not"
)
UNCLIPPED = "max_grad_norm: PPOTrainer clips no gradients, whatever it says"


def defaults(job: Job) -> dict[str, Any]:
    return {**trl.defaults(job), **PPO_DEFAULTS}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    refuse(job)
    note_what_is_taken(job, machine)
    others = PpoModels(job, config, value_config(job, config), machine)
    policy, parameters, optimizer = set_up(job, config, machine, release_of(job, machine.era), others.prepare)
    ppo = Ppo(job, policy, others, lengths)
    unclipped = replace_unchecked(job, max_grad_norm=0.0)
    take_steps(
        unclipped, policy, parameters, optimizer, lengths, ppo.compute_loss, prepare_inputs=ppo.prepare_inputs,
        repeats=ppo.generate_every >= job.grad_accum, begins=False,
    )  # fmt: skip
    ppo.let_go()
    machine.end()


def refuse(job: Job) -> None:
    """What PPOTrainer does not do, and what is not written down of it."""
    instead = TRACE_INSTEAD.removeprefix("To fix: ")
    if job.rl.engine != "transformers":
        told = f"got {job.rl.engine}, which PPOTrainer does not know: the policy writes by `generate()`"
        raise Unsupported.at("rl.engine", f"{told}. To fix: rl.engine transformers; or task grpo")
    if ranks_of(job) > 1 and not sharding_of(job).is_replicated:
        told = f"got {job.parallel.data} with three models beside the policy; how it divides them is not written down"
        raise Unsupported.at("parallel.data", f"{told}. To fix: parallel.data ddp; or {instead}")
    if job.parallel.context > 1:
        raise Unsupported.at("parallel.context", f"PPOTrainer splits no rows. {TRACE_INSTEAD}")
    if job.parallel.layers > 1:
        told = f"got {job.parallel.layers} with models beside the policy, which the closed form does not cut"
        raise Unsupported.at("parallel.layers", f"{told}. To fix: parallel.layers 1; or {instead}")


def note_what_is_taken(job: Job, machine: Machine) -> None:
    guesses, stack = machine.guesses, stack_of(job)
    guesses[UNTRACED] = None
    if not stack.runs_trl:
        guesses[(VALUE_HEAD if stack.has_value_head else OTHER_STACK).format(stack=stack.name)] = None
    guesses[OWN_SIZE if job.rl.reward_model is None else AS_REWARD] = None
    if job.quantization.format is not None:
        guesses[PLAIN] = None
    if job.gradient_checkpointing:
        guesses[RECOMPUTED] = None
    if job.max_grad_norm:
        machine.assumptions[UNCLIPPED] = None


def value_config(job: Job, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the models that reward and value."""
    return config if job.rl.reward_model is None else further_config(config, REWARD)


class Ppo:
    """What of `train` stays from one micro-batch to the next: its local names."""

    def __init__(self, job: Job, policy: Any, others: PpoModels, lengths: Sequence[int]) -> None:
        self.job, self.policy, self.others, self.machine = job, policy, others, policy.machine
        self.lengths = lengths
        self.micro_batches = job.rl.steps_per_generation or job.grad_accum
        self.generate_every = self.micro_batches * job.rl.iterations
        self.completion_length = job.rl.completion_length
        self.logitss: Any = None
        self.batch: dict[str, Tensor] = {}
        self.output: Any = None
        self.logits: Any = None
        self.prob_dist: Any = None
        self._before_training = Phase.OTHER

    def let_go(self) -> None:
        """As the next batch does; what follows the last step of a run is what followed the one before."""
        self.output = self.logits = self.prob_dist = self.logitss = None
        self.batch = {}

    def prepare_inputs(self, number: int) -> Batch:
        """What comes before micro-batch `number` of its optimizer step."""
        machine = self.machine
        machine.phase, machine.in_forward, machine.module = Phase.OTHER, False, ""
        self.end_micro_batch()
        if number == 0:
            self.end_mini_batch()
        self._before_training = Phase.OTHER
        if (machine.step * self.job.grad_accum + number) % self.generate_every == 0:
            self.batch = {}
            machine.empty_cache()
            self.roll_out()
            self._before_training = Phase.SCORE
        rows = self.job.micro_batch
        return ({
            name: machine.run("index", (x,), (rows, *x.shape[1:]), x.dtype) for name, x in self.batch.items()
        },)  # type: ignore[return-value]  # fmt: skip

    def end_micro_batch(self) -> None:
        """What follows the optimizer: entropies, of another copy of the logits."""
        if self.logits is not None:
            with self.machine.no_grad():
                self.prob_dist = note_entropy(self.logits)

    def end_mini_batch(self) -> None:
        """`del` of everything."""
        if self.logits is not None:
            self.output = self.logits = self.prob_dist = None
            self.machine.empty_cache()

    # --------------------------------------------------------------------------------------------------- the rollout

    def roll_out(self) -> None:
        machine, rows = self.machine, self.job.micro_batch * self.micro_batches
        context_length = prompt_length_of(self.job, self.lengths[machine.step])
        queries = machine.run("_to_copy", (), (rows, context_length), INT64)
        with machine.no_grad(), not_recomputed(self.policy):
            query_responses, self.logitss = self.batch_generation(queries)
            machine.phase = Phase.SCORE
            found = [
                self.score(query_responses, start, stop, context_length) for start, stop in parts(rows, ROLLOUT_ROWS)
            ]
            responses, logprobs, ref_logprobs, values = [
                F.cat([each[place] for each in found], 0) for place in range(4)
            ]
            del found
            machine.empty_cache()
            advantages, returns = advantages_of(logprobs, ref_logprobs, values)
            machine.empty_cache()
        self.batch = {
            "query_responses": query_responses, "responses": responses, "logprobs": logprobs, "values": values,
            "advantages": advantages, "returns": returns,
        }  # fmt: skip

    def batch_generation(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        machine, rows = self.machine, queries.shape[0]
        query_responses, logitss = [], []
        for start, stop in parts(rows, ROLLOUT_ROWS):
            query_response, logits = self.generate(narrow(queries, 0, start, stop))
            query_responses.append(query_response)
            logitss.append(logits)
            del query_response, logits
        padded_query_responses = machine.run(
            "full", query_responses, (rows, query_responses[0].shape[1]), INT64
        )  # fmt: skip
        padded_logitss = machine.run("full", logitss, (rows, *logitss[0].shape[1:]), FLOAT32)
        return padded_query_responses, padded_logitss

    def generate(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts and completions, and the scores of all words at each place."""
        machine = self.machine
        attention_mask = machine.run("ne", (queries,), queries.shape, BOOL)
        input_ids = queries.masked_fill(attention_mask, 0)
        scores: list[Tensor] = []
        sequences = generate(
            self.policy, input_ids, attention_mask.to(INT64), self.completion_length, inner_logits, scores
        )
        shape = (queries.shape[0], self.completion_length, scores[0].shape[-1])
        logits = machine.run("stack", scores, shape, FLOAT32)
        return F.cat((queries, narrow(sequences, 1, queries.shape[1], sequences.shape[1])), 1), logits

    def score(
        self, query_responses: Tensor, start: int, stop: int, context_length: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Completions, their log-probabilities by policy and reference, and values. Models are called as they were
        before accelerate wrapped them: without autocast."""
        machine = self.machine
        query_response = narrow(query_responses, 0, start, stop)
        length = query_response.shape[1]
        response = narrow(query_response, 1, context_length, length)
        logprob = selective_log_softmax(narrow(self.logitss, 0, start, stop), response)
        machine.empty_cache()
        machine.of_host(PASS)
        ref_output = self.others.reference_output(self.policy, *masked(query_response))
        ref_logits = narrow(ref_output.logits, 1, context_length - 1, length - 1)
        machine.launch("div_", (ref_logits,), ref_logits.dtype, ref_logits.nbytes)
        ref_logprob = selective_log_softmax(ref_logits, response)
        del ref_output, ref_logits
        machine.empty_cache()
        machine.of_host(PASS)
        full_value = self.others.scores(self.policy.value_model, *masked(query_response))
        value = narrow(full_value, 1, context_length - 1, length - 1).squeeze(-1)
        machine.of_host(PASS)
        self.others.scores(self.others.reward, *masked(query_response))
        return response, logprob, ref_logprob, value

    # ------------------------------------------------------------------------------------------------------ the loss

    def compute_loss(self, job: Job, policy: Any, batch: Any, num_items_in_batch: None) -> Tensor:
        inputs: Mapping[str, Tensor] = batch[0]
        machine = self.machine
        machine.phase, machine.in_forward = self._before_training, False
        input_ids, attention_mask = masked(inputs["query_responses"])
        begin_pass(machine)
        self.output, vpred_temp = policy_and_value(policy, input_ids, attention_mask)
        response_length = inputs["responses"].shape[1]
        logits = logits_of_responses(self.output.logits, response_length)
        self.output, self.logits = self.output.detach(), logits.detach()
        new_logprobs = selective_log_softmax(logits, inputs["responses"])
        length = input_ids.shape[1]
        vpred = narrow(vpred_temp, 1, length - response_length - 1, length - 1).squeeze(-1)
        return ppo_loss(inputs, new_logprobs, vpred)


def masked(query_responses: Tensor) -> tuple[Tensor, Tensor]:
    """`forward`: tokens with 0 for padding, and the mask."""
    machine = query_responses.machine
    attention_mask = machine.run("ne", (query_responses,), query_responses.shape, BOOL)
    input_ids = query_responses.masked_fill(attention_mask, 0)
    return input_ids, attention_mask.to(INT64)


def parts(rows: Any, most: int) -> list[tuple[Any, Any]]:
    """Where each `most` rows begin and end."""
    return [(start, start + most if start + most < rows else rows) for start in starts(rows, most)]
