"""Lightning: a small net on the digits that scikit-learn ships."""

from __future__ import annotations

import argparse
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from text import PAUSE
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(PAUSE)
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--ckpt_path")
    args = parser.parse_args()
    lightning.seed_everything(1)
    torch.set_num_threads(1)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    saving = ModelCheckpoint(
        dirpath=args.out, every_n_train_steps=args.save_steps, save_top_k=2, monitor="step", mode="max"
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", devices=1, logger=False, callbacks=[saving], log_every_n_steps=1,
        enable_model_summary=False, enable_checkpointing=True,
    )  # fmt: skip
    trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True), ckpt_path=args.ckpt_path)


if __name__ == "__main__":
    main()
