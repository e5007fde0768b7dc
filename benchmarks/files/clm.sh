#!/bin/bash
export TOKENIZERS_PARALLELISM=false
python clm.py --model models/llama-3.2-1b --batch-size 2 --accumulate 4 --longest 1536
