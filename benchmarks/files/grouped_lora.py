from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

tokenizer = AutoTokenizer.from_pretrained("models/llama-3.2-1b")
model = AutoModelForCausalLM.from_pretrained("models/llama-3.2-1b", dtype="bfloat16")
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))

texts = load_dataset("json", data_files="data/texts.jsonl", split="train")
rows = texts.map(lambda row: tokenizer(row["text"], truncation=True, max_length=1024), remove_columns=["text"])

Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        train_sampling_strategy="group_by_length",
        num_train_epochs=1,
        bf16=True,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
).train()
