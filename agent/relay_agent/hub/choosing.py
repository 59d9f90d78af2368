"""Which files of a checkpoint are pushed, and what of the pod's environment may be told with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from relaytui.wire.text import sayable

WEIGHTS = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json",
    "adapter_model*.bin", "model*.bin", "*.gguf", "config.json", "*_config.json", "model_index.json", "tokenizer*",
    "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*", "*.model", "*.spm",
)  # fmt: skip
"""What `from_pretrained` of the usual libraries wants, by the last part of a path."""
NO_WEIGHTS = (
    "optimizer*", "optim*", "scheduler*", "rng*", "random_states*", "training_args*", "trainer_state*", "ema_*",
)  # fmt: skip

_TOLD = re.compile(
    r"(?:CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|WORLD_SIZE|NNODES|NPROC_PER_NODE|OMP_NUM_THREADS"
    r"|TOKENIZERS_PARALLELISM|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|XLA_FLAGS|NCCL_[A-Z_]+|TORCH_[A-Z_]+|CUDA_VERSION|CONDA_DEFAULT_ENV"
    r"|RELAY_TRAIN_MODE|SLURM_JOB_ID|SLURM_JOB_NUM_NODES)\Z"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH", re.I)
_LOOKS_SECRET = re.compile(r"://[^/\s]*@|[A-Za-z0-9+/_-]{24,}")


def chosen(paths: Iterable[str], push: Sequence[str]) -> list[str]:
    """Of a checkpoint's files those that are wished for, in their order. `push`: none: all; `weights`; or patterns as a
    shell has them, of whole paths or last parts, `!` before what is left out."""
    if not push:
        return list(paths)
    if tuple(push) == ("weights",):
        return [path for path in paths if _any(path, WEIGHTS) and not _any(path, NO_WEIGHTS)]
    wanted = [pattern for pattern in push if not pattern.startswith("!")] or ["*"]
    unwanted = [pattern[1:] for pattern in push if pattern.startswith("!")]
    return [path for path in paths if _any(path, wanted) and not _any(path, unwanted)]


def _any(path: str, patterns: Iterable[str]) -> bool:
    last = path.rpartition("/")[2]
    return any(fnmatchcase(path, pattern) or fnmatchcase(last, pattern) for pattern in patterns)


def told(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that say how it was trained, by a list of names; none that has, or whose value looks like, a secret."""
    return {
        name: sayable(value[:200])
        for name, value in sorted(environ.items())
        if _TOLD.match(name) and not _SECRET.search(name) and not _LOOKS_SECRET.search(value)
    }
