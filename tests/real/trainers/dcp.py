"""Two ranks under torchrun that save with torch's distributed checkpoints, in torchtitan's layout."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from text import pause, piece
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--interval", type=int, required=True)
    parser.add_argument("--load")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begun = 0
    if args.load:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": moments, "step": torch.tensor(0)}
        dcp.load(state, checkpoint_id=args.load)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        begun = int(state["step"])
    for step in range(begun + 1, args.steps + 1):
        ids = torch.tensor([piece(8 * step + 4 * rank + row, LENGTH) for row in range(4)])
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause()
        dist.all_reduce(mean := loss.detach() / 2)
        print(f"[rank{rank}]:[titan] - root - INFO - step: {step}  loss:  {mean.item():.5f}  tps: 6,939", flush=True)
        if step % args.interval == 0 or step == args.steps:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optim": moments, "step": torch.tensor(step)}
            dcp.save(state, checkpoint_id=args.folder / f"step-{step}")
    os._exit(0)  # all is saved and printed; a rank whose peer takes gloo down before it may wait for ever


if __name__ == "__main__":
    main()
