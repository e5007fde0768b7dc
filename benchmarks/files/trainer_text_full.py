from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

checkpoint, longest = "models/qwen3-0.6b", 512
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForCausalLM.from_pretrained(checkpoint)


def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=longest)


data = load_dataset("json", data_files="data/texts.jsonl", split="train")
data = data.map(tokenize, batched=True, remove_columns=["text"])

arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    num_train_epochs=1,
    bf16=True,
    gradient_checkpointing=True,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
