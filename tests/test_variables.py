"""Names in the environment that are slips of ours, and those of others that are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from relay_agent.config import KEYS
from relaytui.cli.serve import slipped
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.variables import OURS, slips

NAMES = [key.name for key in KEYS]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ARTIFCTS", "ARTIFACTS"),
        ("ATRIFACTS", "ARTIFACTS"),
        ("ARTIFACTTS", "ARTIFACTS"),
        ("COMMANDER_URI", "COMMANDER_URL"),
        ("RELAY_LEASE_SECOND", "RELAY_LEASE_SECONDS"),
        ("RELAY_STOP_GRACES", "RELAY_STOP_GRACE"),
        ("RELAY_SHARED_SECERT", "RELAY_SHARED_SECRET"),
        ("RELAY_TARGET_STEPS", "TARGET_STEPS"),
        ("RELAY_NOTHING_LIKE_IT", ""),
        ("TRAIN_COMMAND", "TRAIN_CMD"),
        ("TRAINER_CMD", "TRAIN_CMD"),
        ("TRAINING_COMMAND", "TRAIN_CMD"),
        ("RELAY_TRAIN_COMMAND", "TRAIN_CMD"),
        ("SLIME_CMD", "SLIME_RL_CMD or SLIME_SFT_CMD"),
        ("SLIME_COMMAND", "SLIME_RL_CMD or SLIME_SFT_CMD"),
        ("SLIME_SFT_COMMAND", "SLIME_SFT_CMD"),
        ("HF_REPO_ID", "HF_REPO"),
        ("HF_REPOSITORY", "HF_REPO"),
        ("HF_KEEP_LAST", "HF_KEEP_LAST_N"),
        ("HF_SYNC_INTERVAL", "RELAY_HF_SYNC_INTERVAL"),
        ("RELAY_CKPT_KEEP_LAST", "RELAY_CKPT_KEEP_LAST_N"),
    ],
)
def test_a_slip_is_found_with_what_was_meant(name: str, near: str) -> None:
    assert slips([name, "PATH"], NAMES) == [(name, near)]


OTHERS = """
PATH HOME HOSTNAME PORT HOST NODE CODE TTY PWD LANG USER SHELL TERM HF_HOME HF_HUB_OFFLINE HF_HUB_CACHE
HF_DATASETS_CACHE HF_HUB_ENABLE_HF_TRANSFER HF_XET_CACHE HF_XET_HIGH_PERFORMANCE HUGGING_FACE_HUB_TOKEN
HF_TOKEN_PATH TRANSFORMERS_CACHE CUDA_VISIBLE_DEVICES NCCL_DEBUG TORCH_HOME TORCH_DISTRIBUTED_DEBUG
MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_RANK RANK NODE_RANK NNODES WANDB_API_KEY WANDB_PROJECT WANDB_RUN_ID
RAY_ADDRESS SLURM_JOB_ID TRAIN_CMDS CHECKPOINT ARTIFACT PATTERN MODEL BASE_MODELS BASE_DIR RETRY RUN_IDS
CKPT_DIR SAVE_DIR SAVE_INTERVAL TARGET_STEP MLFLOW_RUN_ID TOKENIZERS_PARALLELISM OMP_NUM_THREADS PYTHONPATH
SLIME_DIR SLIME_NUM_GPUS SLIME_RAY_PORT SLIME_SAVE_INTERVAL SLIME_SCRIPT_EXTERNAL_RAY HF_DEBUG HF_ASSETS_CACHE HF_CACHE
HF_MODULES_CACHE HF_HUB_REPO HF_USERNAME HF_WRITE_TOKEN HF_MODEL START_CMD COMMAND RUN_COMMAND TRAIN_DIR TRAINING_DIR
MEGATRON_PATH RELAY_SERVICE_HOST RELAY_PORT RELAY_PORT_8080_TCP_ADDR
RELAY_COMMANDER_SERVICE_PORT_HTTP RELAY_COMMANDER_PORT_8080_TCP
"""


def test_names_of_others_are_none() -> None:
    assert slips(OTHERS.split(), NAMES) == []
    assert slips([*OURS, *NAMES], NAMES) == []


def test_all_that_is_read_is_known() -> None:
    class Read(Mapping[str, str]):
        """Notes what it is asked for."""

        def __init__(self) -> None:
            self.names = set[str]()

        def __getitem__(self, name: str) -> str:
            self.names.add(name)
            raise KeyError(name)

        def __iter__(self) -> Iterator[str]:
            return iter(())

        def __len__(self) -> int:
            return 0

    read = Read()
    CommanderSettings.from_env(read, state="/x")
    CommanderSettings.from_env(read)
    assert {name for name in read.names | set(NAMES) if name.startswith("RELAY_")} <= OURS


def test_serve_says_each_in_a_line() -> None:
    said = list(slipped({"RELAY_LEASE_SECOND": "20", "ARTIFCTS": "x", "RELAY_CKPT_KEEP_LAST_N": "1"}, 1))
    assert said == [
        "RELAY_CKPT_KEEP_LAST_N: 1 is raised to 2: the newest two checkpoints of a run are always kept",
        (
            "the environment: RELAY_LEASE_SECOND is no setting of Relay's, and is not read. "
            "did you mean RELAY_LEASE_SECONDS?"
        ),
    ]
    assert list(slipped({"PATH": "/bin", "RELAY_LEASE_SECONDS": "20"}, 3)) == []
