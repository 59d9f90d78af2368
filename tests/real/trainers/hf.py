"""transformers' Trainer as people run it: a tiny GPT-2 on bytes; with `--lora` only an adapter learns (PEFT)."""

from __future__ import annotations

import argparse

import torch
from text import pause, piece
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

LENGTH = 32


class Pieces(Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(piece(index, LENGTH))
        return {"input_ids": ids, "labels": ids}


class Slow(TrainerCallback):
    def on_step_end(self, *args: object, **given: object) -> None:
        pause()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_steps", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    training = TrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        save_steps=args.save_steps,
        save_total_limit=2,
        logging_steps=1,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        seed=1,
        use_cpu=True,
        report_to=[],
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=training, train_dataset=Pieces(), callbacks=[Slow()])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
