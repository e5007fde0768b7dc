"""LoRA on a 1B Llama 3.2 with TRL's SFTTrainer, samples of many lengths.

python trl_sft_lora.py --steps 10
tunecast trace --steps all -- trl_sft_lora.py --steps 10
"""

import argparse
import tempfile

from common_data import print_memory, samples
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--longest", type=int, default=2048)
args = parser.parse_args()

config = AutoConfig.for_model(
    "llama",
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=args.layers,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=128256,
    tie_word_embeddings=True,
    use_cache=False,
)
model = AutoModelForCausalLM.from_config(config, dtype="bfloat16")
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>")),
    pad_token="<pad>",
    eos_token="<eos>",
    unk_token="<unk>",
)
rows = samples(args.steps * args.batch, config.vocab_size, args.longest // 8, args.longest)
data = Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows])
with tempfile.TemporaryDirectory() as folder:
    settings = SFTConfig(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        max_length=args.longest,
        bf16=True,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        seed=1,
    )
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer, peft_config=adapters).train()
print_memory()
