from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

LENGTH, BATCH = 384, 8
data = load_dataset("data/prompts")["train"]
split = data.train_test_split(test_size=100, shuffle=False)

args = SFTConfig(
    "out",
    model_init_kwargs=dict(dtype="bfloat16", attn_implementation="sdpa"),
    max_length=LENGTH,
    per_device_train_batch_size=BATCH,
    per_device_eval_batch_size=BATCH * 2,
    gradient_accumulation_steps=64 // BATCH // 4,
    completion_only_loss=False,
    gradient_checkpointing=True,
    eval_strategy="steps",
    eval_steps=20,
    max_steps=60,
    optim="adamw_torch",
    save_strategy="no",
    report_to="none",
)
trainer = SFTTrainer("models/qwen3-0.6b", args=args, train_dataset=split["train"], eval_dataset=split["test"])
trainer.train()
