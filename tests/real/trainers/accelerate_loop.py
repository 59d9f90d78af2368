"""A loop around Accelerate that saves its state into folders of its own, with a bar as diffusers' examples have it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from text import pause, piece
from tqdm import tqdm

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--max_train_steps", type=int, required=True)
    parser.add_argument("--checkpointing_steps", type=int, required=True)
    parser.add_argument("--resume_from_checkpoint", type=Path)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    begun = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(str(args.resume_from_checkpoint))
        begun = int(args.resume_from_checkpoint.name.split("-")[1])
    bar = tqdm(range(args.max_train_steps), initial=begun, desc="Steps")
    for step in range(begun + 1, args.max_train_steps + 1):
        ids = torch.tensor([piece(4 * step + row, LENGTH) for row in range(4)])
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        pause()
        bar.update(1)
        bar.set_postfix(loss=loss.detach().item(), lr=1e-2)
        if step % args.checkpointing_steps == 0:
            accelerator.save_state(str(args.output_dir / f"checkpoint-{step}"))


if __name__ == "__main__":
    main()
