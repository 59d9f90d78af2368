"""A plain loop around torch, in the manner of nanoGPT: one `ckpt.pt` that is written over again and again."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from text import PAUSE, pause, piece

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out_dir", type=Path, required=True)
    parser.add_argument("--max_iters", type=int, required=True)
    parser.add_argument("--save_every", type=int, required=True)
    parser.add_argument("--init_from", choices=("scratch", "resume"), default="scratch")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    path = args.out_dir / "ckpt.pt"
    begun = 0
    if args.init_from == "resume":
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun = saved["iter_num"]
        print(f"resuming from iteration {begun}", flush=True)
    for number in range(begun + 1, args.max_iters + 1):
        ids = torch.tensor([piece(4 * number + row, LENGTH) for row in range(4)])
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause()
        print(f"iter {number}: loss {loss.item():.4f}, time {PAUSE * 1e3:.2f}ms", flush=True)
        if number % args.save_every == 0 or number == args.max_iters:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": number}
            torch.save(state, path)
            print(f"saving checkpoint to {args.out_dir}", flush=True)


if __name__ == "__main__":
    main()
