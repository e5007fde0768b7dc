"""How many layers and steps are traced."""

from __future__ import annotations

from tunecast.job import job_from_dict
from tunecast.tape.shorten import layer_period, layers_to_trace, leading_layers, steps_of, steps_to_trace, with_layers


def test_one_length_needs_step_zero_and_two_steady_ones() -> None:
    job = job_from_dict({"model": "llama-3.1-8b", "seq_len": 512})
    assert steps_to_trace(job) == ([512, 512, 512], [0, 1, 2, 2, 2, 2])


def test_each_length_is_traced_once_and_played_in_the_real_order() -> None:
    job = job_from_dict({"model": "llama-3.1-8b", "seq_len": 30, "lengths": [10, 20, 10, 30, 20, 10, 20]})
    lengths, order = steps_to_trace(job)
    assert lengths == [10, 20, 10, 30]
    assert [lengths[i] for i in order] == steps_of(job) == [10, 20, 10, 30, 20, 10, 20]


def test_layers_of_a_plain_model() -> None:
    assert layers_to_trace({"num_hidden_layers": 32}) == (4, 5, 32)


def test_layers_of_an_alternating_model_keep_its_pattern() -> None:
    config = {"num_hidden_layers": 26, "layer_types": (["sliding"] * 5 + ["full"]) * 4 + ["sliding"] * 2}
    assert layer_period(config) == 6
    small, large, total = layers_to_trace(config)
    assert (total - small) % 6 == 0 and large - small == 6 and small >= leading_layers(config) + 6 + 1


def test_leading_dense_layers_are_kept() -> None:
    assert leading_layers({"first_k_dense_replace": 3}) == 4
    assert layers_to_trace({"num_hidden_layers": 61, "first_k_dense_replace": 3}) == (6, 7, 61)


def test_cutting_layers_cuts_the_lists_that_describe_them() -> None:
    config = {"text_config": {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"]}}
    assert with_layers(config, 2) == {"text_config": {"num_hidden_layers": 2, "layer_types": ["a", "b"]}}
    assert config["text_config"]["num_hidden_layers"] == 4
