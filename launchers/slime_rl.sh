#!/usr/bin/env bash
# slime, reinforcement learning, under relay-agent (docs/trainers.md, "slime"):
#   SLIME_RL_CMD='exec "$RELAY_LAUNCHERS/slime_rl.sh" scripts/run-qwen3-4B.sh'       a script that comes with slime, as it is
#   SLIME_RL_CMD='exec "$RELAY_LAUNCHERS/slime_rl.sh" --hf-checkpoint ... --colocate'  train.py with these flags
set -euo pipefail
exec python3 "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/slime_launch.py" rl "$@"
