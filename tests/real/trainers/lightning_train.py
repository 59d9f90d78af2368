"""Lightning: a small net on the digits that scikit-learn ships."""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from text import pause, tells
from torch.utils.data import DataLoader

BATCH = 64


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        digits = load_digits()
        self.data = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        pause()
        # In the midst of an epoch it goes on with the first batch: by the step, each has its own rows again.
        rows = (batch - batch[0] + self.global_step * BATCH) % len(self.data)
        loss = torch.nn.functional.cross_entropy(self.net(self.data[rows]), self.labels[rows])
        self.log("train_loss", loss, prog_bar=True)
        tells(self.global_step + 1, loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--ckpt_path")
    args = parser.parse_args()
    lightning.seed_everything(1)
    torch.set_num_threads(1)
    saving = ModelCheckpoint(
        dirpath=args.out, every_n_train_steps=args.save_steps, save_top_k=2, monitor="step", mode="max"
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", devices=1, logger=False, callbacks=[saving], log_every_n_steps=1,
        enable_model_summary=False, enable_checkpointing=True,
    )  # fmt: skip
    model = Digits()
    trainer.fit(model, DataLoader(range(len(model.data)), batch_size=BATCH, drop_last=True), ckpt_path=args.ckpt_path)


if __name__ == "__main__":
    main()
