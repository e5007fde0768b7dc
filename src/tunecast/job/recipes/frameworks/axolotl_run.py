"""How long Axolotl trains, how often it saves and evaluates."""

from __future__ import annotations

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.axolotl_keys import NAME, RELEASE, assume_default, attention_packs, is_on
from tunecast.job.recipes.values import number, switch, whole, word


def take_run(draft: Draft, keys: Keys) -> None:
    draft.take("data.epochs", keys, "num_epochs")
    assume_default(draft, "data.epochs")
    steps = keys.get("max_steps")
    if steps is not None and whole(steps) not in (0, -1):
        draft.put("run.max_steps", steps, keys, "max_steps")
    epochs = number(draft.fields["data.epochs"]) or 1.0
    take_saves(draft, keys, epochs)
    take_evaluations(draft, keys, epochs)


def take_rhythm(draft: Draft, keys: Keys, epochs: float, what: str) -> bool:
    """How often it saves or evaluates, where a number says it: so many an epoch, or steps, less than one being a share
    of all."""
    by_steps, by_epoch = f"{what}_steps", f"{what}s_per_epoch"
    steps, an_epoch = number(keys.get(by_steps)), number(keys.get(by_epoch))
    if an_epoch and an_epoch * epochs > 1:
        draft.put(f"run.{what}_strategy", "steps", keys, by_epoch)
        draft.put(f"run.{by_epoch}", an_epoch, keys, by_epoch)
        return True
    if not steps:
        return False
    draft.put(f"run.{what}_strategy", "steps", keys, by_steps)
    if steps < 1:
        draft.put(f"run.{by_epoch}", 1 / (steps * epochs), keys, by_steps)
    else:
        draft.put(f"run.{by_steps}", keys.get(by_steps), keys, by_steps)
    return True


def take_saves(draft: Draft, keys: Keys, epochs: float) -> None:
    """`normalize_config`: so many an epoch are a share of all steps; one share alone is the default, every epoch."""
    strategy = keys.get("save_strategy")
    by_number = take_rhythm(draft, keys, epochs, "save")
    if not by_number and word(strategy) == "best":
        draft.put("run.save_strategy", "epoch", keys, "save_strategy")
        draft.not_modelled(keys, "save_strategy", "a checkpoint is written where an evaluation is the best so far")
    elif not by_number and strategy is not None:
        draft.put("run.save_strategy", word(strategy) or strategy, keys, "save_strategy")
    draft.assume("run.save_strategy", "epoch")
    draft.take("run.save_total_limit", keys, "save_total_limit")
    draft.assume("run.save_total_limit", 4)
    draft.take("run.save_only_model", keys, "save_only_model")


def take_evaluations(draft: Draft, keys: Keys, epochs: float) -> None:
    held_back, sets = keys.get("val_set_size"), keys.document.get("test_datasets")
    share = number(held_back) or 0.0
    names = ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")
    strategy = word(keys.get("eval_strategy", "evaluation_strategy"))
    if not share and not is_on(sets):
        keys.ignore(*names, "eval_batch_size", "eval_sample_packing", "eval_sequence_len", "eval_max_new_tokens")
        draft.assume("run.eval_strategy", "no", f"{NAME} {RELEASE}: nothing is held back to evaluate on")
        assume_eval_batch(draft, draft.fields["micro_batch"])
        return
    if not take_rhythm(draft, keys, epochs, "eval") and strategy:
        draft.put("run.eval_strategy", strategy, keys, "eval_strategy", "evaluation_strategy")
    draft.assume("run.eval_strategy", "no")
    if share:
        draft.put("data.held_back", held_back, keys, "val_set_size")
    take_eval_batch(draft, keys)


def assume_eval_batch(draft: Draft, rows: object) -> None:
    """What is no number of rows is refused of training's alone."""
    if (whole(rows) or 0) > 0:
        draft.assume("run.eval_batch", rows)


def take_eval_batch(draft: Draft, keys: Keys) -> None:
    """As training's, where it says no other; packed rows are laid end to end here too."""
    packs, evals = draft.fields["data.packing"], switch(keys.get("eval_sample_packing"))
    keys.ignore("eval_sequence_len", "eval_max_new_tokens")
    if packs and attention_packs(draft) and evals is not False:
        draft.assume("run.eval_batch", 1)
        keys.get("eval_batch_size")
        return
    draft.take("run.eval_batch", keys, "eval_batch_size")
    assume_eval_batch(draft, keys.get("micro_batch_size") or draft.fields["micro_batch"])
    rows, length = whole(draft.fields.get("run.eval_batch")), whole(keys.get("sequence_len"))
    of_training = whole(draft.fields["seq_len"])
    if not packs or evals is not False or not (rows and length and of_training) or length == of_training:
        return
    # its rows are as long as sequence_len says, several of which are one of training's
    draft.put("run.eval_batch", -(-rows * length // of_training), keys, "eval_batch_size", "micro_batch_size")
    if draft.fields["run.eval_strategy"] != "no":
        draft.not_modelled(keys, "eval_sample_packing", "rows of an evaluation are shorter than those of training")
