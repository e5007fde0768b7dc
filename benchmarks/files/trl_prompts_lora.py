from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

model_name = "models/qwen3-0.6b"
tokenizer = AutoTokenizer.from_pretrained(model_name)
prompts = load_dataset("data/prompts", split="train").train_test_split(test_size=0.1, seed=1)

training = SFTConfig(
    output_dir="out",
    model_init_kwargs={"dtype": "bfloat16"},
    max_length=512,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    eval_strategy="epoch",
    num_train_epochs=2,
    gradient_checkpointing=False,
    activation_offloading=False,
    save_strategy="no",
    report_to="none",
    completion_only_loss=True,
)
adapter = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = SFTTrainer(
    model=model_name,
    args=training,
    train_dataset=prompts["train"],
    eval_dataset=prompts["test"],
    peft_config=adapter,
    processing_class=tokenizer,
)
trainer.train()
