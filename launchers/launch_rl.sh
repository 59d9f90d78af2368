#!/usr/bin/env bash
# Reinforcement learning: what relay-agent starts for MODE=rl, with the variables that docs/trainers.md names.
# SLIME_RL_CMD, where set, is run instead of the small trainer that comes with Relay. By hand:
#   RELAY_CKPT_STAGING_ROOT=/tmp/staging RELAY_OUTPUT_DIR=/tmp/out launchers/launch_rl.sh --steps 100
set -euo pipefail

# exec: signals must reach the trainer itself, and its exit code must be this script's.
if [[ -n "${SLIME_RL_CMD:-}" ]]; then
  exec bash -c "$SLIME_RL_CMD" bash "$@"
fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec python3 "$here/char_lm.py" --mode rl "$@"
