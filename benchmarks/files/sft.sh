#!/bin/bash
python sft.py --model_name_or_path models/qwen3-0.6b --dataset_name data/chats.jsonl --max_length 640 --per_device_train_batch_size 6 --gradient_accumulation_steps 3 --gradient_checkpointing False --num_train_epochs 1 --use_peft --lora_r 16 --lora_alpha 32 --lora_target_modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj --save_strategy no --report_to none --output_dir out
