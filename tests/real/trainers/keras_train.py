"""Keras on its torch backend: files named by epoch, and what it backs up to go on after an interruption."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
from sklearn.datasets import load_digits
from text import pause


class Slow(keras.callbacks.Callback):
    def on_batch_end(self, batch: int, logs: object = None) -> None:
        pause()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--load", type=Path)
    args = parser.parse_args()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    begun = 0
    if args.load:
        model = keras.models.load_model(args.load)
        begun = int(re.findall(r"\d+", args.load.name)[-1])
    else:
        model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    args.out.mkdir(parents=True, exist_ok=True)
    saving = keras.callbacks.ModelCheckpoint(str(args.out / "ck-{epoch:02d}.keras"))
    model.fit(
        digits.data / 16, digits.target, batch_size=128, epochs=args.epochs, initial_epoch=begun,
        shuffle=False, callbacks=[saving, Slow()],
    )  # fmt: skip


if __name__ == "__main__":
    main()
