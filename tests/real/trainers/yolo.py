"""A loop that saves and prints as Ultralytics: `last.pt` in place after each epoch, then `best.pt`; in the end both
lose what a run could go on from. Settings are `name=value`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from text import pause


def strip(path: Path) -> None:
    saved = torch.load(path)
    torch.save({"epoch": -1, "model": saved["model"], "optimizer": None}, path)


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    folder, epochs = Path(given["save_dir"]), int(given["epochs"])
    torch.manual_seed(1)
    torch.set_num_threads(1)
    digits = load_digits()
    data = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begun, best = 0, float("-inf")
    if given.get("resume") == "True":
        saved = torch.load(given["model"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun, best = saved["epoch"] + 1, saved["best_fitness"]
    weights = folder / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    (folder / "args.yaml").write_text("".join(f"{name}: {value}\n" for name, value in given.items()))
    results = folder / "results.csv"
    if not results.exists():
        results.write_text("epoch,time,train/cls_loss\n")
    print("\n      Epoch    GPU_mem   cls_loss  Instances       Size", flush=True)
    for epoch in range(begun, epochs):
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause()
        row = f"{epoch + 1}/{epochs}"
        print(
            f"\r\x1b[K{row:>11}         0G {loss.item():>10.4g}         23        640: 100% {'━' * 12} 1/1 9.8it/s 0.1s"
        )
        with results.open("a") as file:
            file.write(f"{epoch + 1},0.1,{loss.item():.5f}\n")
        state = {
            "epoch": epoch, "best_fitness": max(best, -loss.item()), "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }  # fmt: skip
        torch.save(state, weights / "last.pt")
        if state["best_fitness"] == -loss.item():
            torch.save(state, weights / "best.pt")
        best = state["best_fitness"]
    for name in ("last.pt", "best.pt"):
        strip(weights / name)
    print(f"\n{epochs} epochs completed in 0.001 hours.", flush=True)


if __name__ == "__main__":
    main()
