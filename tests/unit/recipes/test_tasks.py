"""Trainers' files of every task: preferences, heads, rollouts, teachers, images; one short file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.job.job import Job
from tunecast.job.readers import read_job
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.own_words import own_words
from tunecast.job.recipes.recipe import Recipe

Values = dict[str, Any]
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
LOADS = f"""\
from transformers import AutoModelForCausalLM
from trl import *
model = AutoModelForCausalLM.from_pretrained("{MODEL}")
"""
TRL = f"model_name_or_path: {MODEL}\noutput_dir: x\n"
AXOLOTL = f"base_model: {MODEL}\ndatasets: [{{path: a}}]\nsequence_len: 1024\nattn_implementation: flash_attention_2\n"
FACTORY = f"model_name_or_path: {MODEL}\nfinetuning_type: lora\ndataset: some\n"
VISION = "Qwen/Qwen2.5-VL-3B-Instruct"


def read(folder: Path, name: str, text: str) -> tuple[Recipe, Job]:
    path = folder / name
    path.write_text(text)
    recipe = find_recipe(path)
    assert recipe is not None and recipe.refused is None, recipe
    return recipe, read_job(str(path), {"hardware.gpu": "h100-sxm-80gb"})


def held(job: Job, expected: Values) -> Values:
    flat = job.flat()
    return {name: flat[name] for name in expected}


def script(trainer: str, config: str = "", loads: str = LOADS) -> str:
    return f"{loads}trainer = {trainer}\n" if not config else f"{loads}args = {config}\ntrainer = {trainer}\n"


FILES: list[tuple[str, str, str, Values]] = [
    ("trl dpo", "x.yaml",
     f"{TRL}beta: 0.05\nprecompute_ref_log_probs: true\nmax_length: 512\nmax_prompt_length: 256\n",
     {"task": "dpo", "stack": "trl", "preference.beta": 0.05, "preference.reference": "precomputed", "seq_len": 512,
      "gradient_checkpointing": True}),
    ("trl grpo", "x.yaml",
     f"{TRL}reward_funcs: [accuracy]\nnum_generations: 4\nmax_prompt_length: 128\nmax_completion_length: 256\n"
     "use_vllm: true\nvllm_gpu_memory_utilization: 0.5\nvllm_enable_sleep_mode: true\n",
     {"task": "grpo", "rl.generations": 4, "rl.prompt_length": 128, "rl.completion_length": 256, "seq_len": 384,
      "rl.engine": "vllm", "rl.vllm.place": "colocate", "rl.vllm.memory_fraction": 0.5, "rl.vllm.sleep": True,
      "rl.beta": 0.0, "micro_batch": 8}),
    ("trl grpo, a server", "x.yaml", f"{TRL}use_vllm: true\nvllm_mode: server\nbeta: 0.04\n",
     {"task": "grpo", "rl.vllm.place": "server", "rl.vllm.memory_fraction": 0.9, "rl.beta": 0.04, "seq_len": 1024}),
    ("trl rloo", "x.yaml", f"{TRL}rloo_k: 4\n", {"task": "rloo", "rl.generations": 4, "rl.beta": 0.05}),
    ("trl ppo", "x.yaml", f"{TRL}reward_model_path: gpt2\n",
     {"task": "ppo", "rl.reward_model": "gpt2", "rl.completion_length": 53, "rl.iterations": 4}),
    ("trl distill", "x.yaml", f"{TRL}teacher_model_name_or_path: gpt2\nlmbda: 0.25\n",
     {"task": "distill", "distill.teacher": "gpt2", "distill.on_policy": 0.25, "seq_len": 1024}),
    ("trl distill, all on-policy", "x.yaml", f"{TRL}teacher_model_name_or_path: gpt2\nmax_completion_length: 100\n",
     {"task": "distill", "distill.on_policy": 1.0, "seq_len": 612}),
    ("trl prm", "x.yaml", f"{TRL}step_separator: x\n", {"task": "prm", "seq_len": 1024}),
    ("DPOTrainer", "x.py",
     script("DPOTrainer(model, ref_model=AutoModelForCausalLM.from_pretrained('gpt2'), args=args)",
            "DPOConfig(per_device_train_batch_size=2, beta=0.3)"),
     {"task": "dpo", "micro_batch": 2, "preference.beta": 0.3, "preference.reference": "model",
      "autocast": "bfloat16"}),
    ("DPOTrainer of old", "x.py",
     script("DPOTrainer(model, beta=0.2, max_length=768, args=args)", "TrainingArguments(output_dir='x')"),
     {"task": "dpo", "preference.beta": 0.2, "seq_len": 768, "autocast": None}),
    ("KTOTrainer", "x.py", script("KTOTrainer(model, args=args)", "KTOConfig(max_length=256)"),
     {"task": "kto", "seq_len": 256}),
    ("CPOTrainer", "x.py", script("CPOTrainer(model, args=args)", "CPOConfig(loss_type='simpo')"),
     {"task": "simpo", "preference.sft_weight": 1.0}),
    ("ORPOTrainer", "x.py", script("ORPOTrainer(model, args=args)", "ORPOConfig(beta=0.1)"), {"task": "orpo"}),
    ("RewardTrainer", "x.py",
     script("RewardTrainer(model, args=args)", "RewardConfig(max_length=300)",
            "from trl import *\nfrom transformers import *\n"
            f"model = AutoModelForSequenceClassification.from_pretrained('{MODEL}', num_labels=1)\n"),
     {"task": "reward", "seq_len": 300, "head.labels": 1}),
    ("a classifier", "x.py",
     script("Trainer(model, args=args)", "TrainingArguments(output_dir='x')",
            "from transformers import *\n"
            f"model = AutoModelForSequenceClassification.from_pretrained('{MODEL}', num_labels=5)\n"),
     {"task": "classify", "head.labels": 5, "stack": "transformers"}),
    ("GRPOTrainer", "x.py",
     script("GRPOTrainer(model=model, reward_funcs=[score, 'gpt2'], args=args)",
            "GRPOConfig(num_generations=4, use_vllm=False, max_completion_length=64)"),
     {"task": "grpo", "rl.generations": 4, "rl.reward_model": "gpt2", "rl.engine": "transformers", "seq_len": 576}),
    ("RLOOTrainer", "x.py", script("RLOOTrainer(model=model, args=args)", "RLOOConfig(output_dir='x')"),
     {"task": "rloo", "rl.generations": 2, "rl.beta": 0.05}),
    ("GKDTrainer", "x.py",
     script("GKDTrainer(model=model, teacher_model='gpt2', args=args)", "GKDConfig(lmbda=0.0, max_length=128)"),
     {"task": "distill", "distill.teacher": "gpt2", "distill.on_policy": 0.0, "seq_len": 128}),
    ("an embedding", "x.py",
     "from sentence_transformers import *\n"
     f"from unsloth import FastSentenceTransformer\nmodel = FastSentenceTransformer.from_pretrained('{MODEL}')\n"
     "model = FastSentenceTransformer.get_peft_model(model, r=8)\n"
     "args = SentenceTransformerTrainingArguments(output_dir='x', per_device_train_batch_size=32)\n"
     "SentenceTransformerTrainer(model=model, args=args)\n",
     {"task": "embed", "micro_batch": 32, "method": "lora", "lora.rank": 8, "gradient_checkpointing": False}),
    ("unsloth grpo", "x.py",
     "import os\nos.environ['UNSLOTH_VLLM_STANDBY'] = '1'\nfrom unsloth import FastLanguageModel\nfrom trl import *\n"
     f"model, t = FastLanguageModel.from_pretrained('{MODEL}', max_seq_length=1024, load_in_4bit=False,"
     " fast_inference=True, gpu_memory_utilization=0.6)\nmodel = FastLanguageModel.get_peft_model(model, r=16)\n"
     "GRPOTrainer(model=model, reward_funcs=[f], args=GRPOConfig(num_generations=6, per_device_train_batch_size=1,"
     " gradient_accumulation_steps=1, max_completion_length=768))\n",
     {"task": "grpo", "stack": "unsloth", "rl.engine": "vllm", "rl.vllm.memory_fraction": 0.6, "rl.vllm.sleep": True,
      "micro_batch": 6, "rl.prompt_length": 256, "seq_len": 1024}),
    ("unsloth vision", "x.py",
     "from unsloth import FastVisionModel\nfrom trl import *\n"
     f"model, t = FastVisionModel.from_pretrained('{VISION}', load_in_4bit=False)\n"
     "model = FastVisionModel.get_peft_model(model, finetune_vision_layers=False, finetune_mlp_modules=False, r=16)\n"
     "SFTTrainer(model=model, data_collator=UnslothVisionDataCollator(model, t), args=SFTConfig(max_length=2048))\n",
     {"task": "sft", "stack": "trl", "vision.images": 1, "vision.trained": ("language",), "seq_len": 2048,
      "lora.targets": ("q_proj", "k_proj", "v_proj", "o_proj")}),
    ("axolotl dpo", "x.yaml", f"{AXOLOTL}rl: dpo\nrl_beta: 0.2\nsample_packing: true\nmicro_batch_size: 2\n",
     {"task": "dpo", "preference.beta": 0.2, "seq_len": 1024, "micro_batch": 2, "data.packing": False}),
    ("axolotl grpo", "x.yaml",
     f"{AXOLOTL}rl: grpo\nmicro_batch_size: 4\n"
     "trl: {use_vllm: true, vllm_mode: server, num_generations: 4, max_completion_length: 256}\n"
     "vllm: {gpu_memory_utilization: 0.8, tensor_parallel_size: 2, data_parallel_size: 2}\n",
     {"task": "grpo", "rl.generations": 4, "rl.completion_length": 256, "rl.prompt_length": 768, "rl.vllm.cards": 4,
      "rl.vllm.memory_fraction": 0.8, "rl.vllm.place": "server", "stack": "axolotl"}),
    ("axolotl prm", "x.yaml", f"{AXOLOTL}process_reward_model: true\nnum_labels: 2\n",
     {"task": "prm", "head.labels": 2}),
    ("axolotl images", "x.yaml",
     f"{AXOLOTL}processor_type: AutoProcessor\nimage_size: 512\nadapter: lora\nlora_r: 8\nlora_alpha: 16\n"
     "lora_target_modules: 'model.language_model.layers.[\\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj'\n",
     {"task": "sft", "vision.images": 1, "vision.pixels": 262144, "vision.trained": ("language",)}),
    ("llama-factory simpo", "x.yaml", f"{FACTORY}stage: dpo\npref_loss: simpo\npref_beta: 2.0\n",
     {"task": "simpo", "preference.beta": 2.0, "stack": "llama-factory", "seq_len": 2048}),
    ("llama-factory kto", "x.yaml", f"{FACTORY}stage: kto\nref_model: gpt2\n",
     {"task": "kto", "preference.beta": 0.1, "preference.reference": "model"}),
    ("llama-factory ppo", "x.yaml",
     f"{FACTORY}stage: ppo\nreward_model: gpt2\nreward_model_type: full\nmax_new_tokens: 512\ncutoff_len: 1536\n",
     {"task": "ppo", "rl.reward_model": "gpt2", "rl.completion_length": 512, "rl.prompt_length": 1536,
      "seq_len": 2048}),
    ("llama-factory reward", "x.yaml", f"{FACTORY}stage: rm\n", {"task": "reward"}),
    ("llama-factory images", "x.yaml",
     FACTORY.replace("some", "mllm_demo") + "stage: sft\nfreeze_multi_modal_projector: false\n",
     {"task": "sft", "vision.images": 1, "vision.pixels": 589824, "vision.trained": ("projector", "language")}),
    ("llama-factory videos", "x.yaml", FACTORY.replace("some", "mllm_video_demo") + "stage: sft\nvideo_maxlen: 32\n",
     {"vision.images": 0, "vision.frames": 32, "vision.pixels": 65536}),
    ("swift simpo", "x.sh", f"swift rlhf --rlhf_type simpo --model {MODEL} --max_length 512\n",
     {"task": "simpo", "stack": "ms-swift", "preference.beta": 2.0, "seq_len": 512}),
    ("swift grpo", "x.sh",
     f"NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model {MODEL} --use_vllm true --vllm_mode colocate"
     " --sleep_level 1 --max_length 256 --max_completion_length 128 --num_generations 4\n",
     {"task": "grpo", "rl.vllm.sleep": True, "rl.vllm.memory_fraction": 0.9, "rl.beta": 0.04, "grad_accum": 1,
      "rl.prompt_length": 256, "seq_len": 384, "rl.generations": 4}),
    ("swift ppo", "x.sh", f"swift rlhf --rlhf_type ppo --model {MODEL} --reward_model gpt2\n",
     {"task": "ppo", "rl.reward_model": "gpt2", "rl.completion_length": 512, "rl.iterations": 4}),
    ("swift gkd", "x.sh", f"swift rlhf --rlhf_type gkd --model {MODEL} --teacher_model gpt2 --max_length 300\n",
     {"task": "distill", "distill.teacher": "gpt2", "distill.on_policy": 0.5, "seq_len": 300}),
    ("swift grpo, a teacher", "x.sh",
     f"NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model {MODEL} --teacher_model Qwen/Qwen2.5-7B-Instruct"
     " --num_generations 1 --use_vllm true --vllm_mode colocate\n",
     {"task": "grpo", "distill.teacher": "Qwen/Qwen2.5-7B-Instruct", "rl.generations": 1, "distill.place": "card"}),
    ("megatron gkd", "x.sh",
     f"NPROC_PER_NODE=2 megatron rlhf --rlhf_type gkd --model {MODEL} --teacher_model Qwen/Qwen2.5-7B-Instruct"
     " --lmbda 1 --gkd_logits_topk 32 --max_completion_length 256 --micro_batch_size 1 --global_batch_size 4\n",
     {"task": "distill", "stack": "megatron", "distill.teacher": "Qwen/Qwen2.5-7B-Instruct", "distill.top_k": 32,
      "distill.on_policy": 1.0, "rl.completion_length": 256}),
    ("swift rm", "x.sh", f"swift rlhf --rlhf_type rm --model {MODEL}\n", {"task": "reward"}),
    ("swift classes", "x.sh", f"swift sft --task_type seq_cls --num_labels 3 --model {MODEL}\n",
     {"task": "classify", "head.labels": 3, "stack": "ms-swift"}),
    ("swift embedding", "x.sh", f"swift sft --task_type embedding --model {MODEL}\n", {"task": "embed"}),
    ("swift reranker", "x.sh", f"swift sft --task_type generative_reranker --model {MODEL}\n", {"task": "rerank"}),
    ("swift images", "x.sh",
     f"MAX_PIXELS=1003520 swift sft --model {VISION} --freeze_aligner false --dataset AI-ModelScope/LaTeX_OCR\n",
     {"task": "sft", "vision.images": 1, "vision.pixels": 1003520, "vision.trained": ("projector", "language"),
      "seq_len": 1024 + 1280}),
    ("swift videos", "x.sh", f"FPS_MAX_FRAMES=16 VIDEO_MAX_PIXELS=50176 swift sft --model {VISION}"
     " --dataset swift/VideoChatGPT\n",
     {"vision.images": 0, "vision.frames": 16, "vision.pixels": 50176}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), [each[1:] for each in FILES], ids=[each[0] for each in FILES])
def test_a_file_of_a_task(tmp_path: Path, name: str, text: str, expected: Values) -> None:
    recipe, job = read(tmp_path, name, text)
    assert held(job, expected) == expected
    allowed = ("Unsloth's code for images", "PPO has the value")
    assert [each for each in recipe.not_understood if not any(part in each.why for part in allowed)] == []


def test_what_nobody_says_of_images_is_assumed(tmp_path: Path) -> None:
    recipe, _ = read(tmp_path, "x.yaml", f"{AXOLOTL}processor_type: AutoProcessor\n")
    assert recipe.assumed["vision.images"].whose.startswith("tunecast: how many images")


def test_a_server_of_the_same_script_has_cards_too(tmp_path: Path) -> None:
    serves = "CUDA_VISIBLE_DEVICES=6,7 swift rollout --model x --vllm_data_parallel_size 2 &\n"
    trains = "swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode server --num_generations 2"
    recipe, job = read(tmp_path, "x.sh", f"{serves}NPROC_PER_NODE=6 {trains} --model {MODEL}\n")
    assert (job.rl.vllm.place, job.rl.vllm.cards, job.hardware.gpus) == ("server", 2, 6)
    assert not recipe.not_understood


def test_a_script_without_a_model_is_started_as_its_docstring_shows(tmp_path: Path) -> None:
    (tmp_path / "dpo_mine.py").write_text(
        f'"""Full training:\n\n```\naccelerate launch --num_processes 2 dpo_mine.py \\\n'
        f'    --model_name_or_path {MODEL} \\\n    --per_device_train_batch_size 3\n```\n"""\n'
        "from trl import *\nscript_args, args, model_args = TrlParser((ScriptArguments, DPOConfig, ModelConfig))"
        ".parse_args_and_config()\nDPOTrainer(model_args.model_name_or_path, args=args)\n"
    )
    recipe = find_recipe(tmp_path / "dpo_mine.py")
    assert recipe is not None and recipe.job["model"] == MODEL and recipe.job["micro_batch"] == 3
    assert recipe.job["task"] == "dpo" and recipe.job["hardware"]["gpus"] == 2
    assert recipe.places["micro_batch"].key == "per_device_train_batch_size" and recipe.places["micro_batch"].line == 4


def test_megatron_sees_images(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(f"megatron sft --model {VISION} --dataset AI-ModelScope/LaTeX_OCR\n")
    recipe = find_recipe(path)
    assert recipe is not None and recipe.refused is None
    assert recipe.job["vision"] == {"images": 1, "trained": ["language"]}


@pytest.mark.parametrize("name", ["XPOTrainer", "OnlineDPOTrainer", "NashMDTrainer", "BCOTrainer", "GOLDTrainer",
                                  "SDPOTrainer", "SDFTTrainer", "TPOTrainer", "SSDTrainer"])  # fmt: skip
def test_trainers_nobody_wrote_down_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(script(f"{name}(model)"))
    recipe = find_recipe(path)
    assert recipe is not None and recipe.refused is not None
    assert recipe.refused.split(":")[0].replace(" ", "").replace("-", "") == name.removesuffix("Trainer").lower()


@pytest.mark.parametrize(
    ("name", "text", "changes", "words"),
    [
        ("x.yaml", f"{TRL}beta: 0.1\n", {"preference.reference": "precomputed"}, {"precompute_ref_log_probs": True}),
        ("x.yaml", f"{TRL}use_vllm: true\n", {"rl.completion_length": 256, "seq_len": 768},
         {"max_completion_length": 256}),
        ("x.yaml", f"{TRL}use_vllm: true\n", {"rl.vllm.sleep": True, "rl.vllm.memory_fraction": 0.15},
         {"vllm_enable_sleep_mode": True, "vllm_gpu_memory_utilization": 0.15}),
        ("x.yaml", f"{AXOLOTL}rl: grpo\nmicro_batch_size: 8\ntrl: {{num_generations: 8}}\n", {"rl.generations": 4},
         {"trl.num_generations": 4}),
        ("x.yaml", FACTORY.replace("some", "mllm_demo"), {"vision.trained": ["language"], "vision.pixels": 262144},
         {"freeze_vision_tower": True, "freeze_multi_modal_projector": True, "freeze_language_model": False,
          "image_max_pixels": 262144}),
        ("x.sh", f"MAX_PIXELS=1003520 swift sft --model {VISION}\n", {"vision.pixels": 501760}, {"max_pixels": 501760}),
        ("x.sh", f"NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate --model {MODEL}\n",
         {"rl.vllm.sleep": True}, {"sleep_level": 1}),
    ],
)  # fmt: skip
def test_changes_in_the_words_of_the_file(tmp_path: Path, name: str, text: str, changes: Values, words: Values) -> None:
    recipe, _ = read(tmp_path, name, text)
    assert own_words(tmp_path / name, recipe, changes) == words
