#!/usr/bin/env bash
# slime, supervised fine-tuning, under relay-agent (docs/trainers.md, "slime"):
#   SLIME_SFT_CMD='exec "$RELAY_LAUNCHERS/slime_sft.sh" scripts/run-qwen3-4B-base-sft.sh'  a script that comes with slime
#   SLIME_SFT_CMD='exec "$RELAY_LAUNCHERS/slime_sft.sh" --hf-checkpoint ... --num-epoch 3'   train_async.py with these flags
set -euo pipefail
exec python3 "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/slime_launch.py" sft "$@"
