from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

chats = load_dataset("json", data_files="data/chats.jsonl", split="train")

trainer = SFTTrainer(
    model="models/llama-3.2-1b",
    args=SFTConfig(
        output_dir="out",
        max_length=1024,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=2e-4,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=chats,
    peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"),
)
trainer.train()
