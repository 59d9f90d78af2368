"""TRL's SFT and GRPO trainers on a model and a tokenizer made on the spot."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from text import TEXT, pause
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

LINES = [line for line in TEXT.decode("utf-8", "replace").splitlines() if 20 < len(line) < 80][:400]


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", "<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


class Slow(TrainerCallback):
    def on_step_end(self, *args: object, **given: object) -> None:
        pause()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=("sft", "grpo"))
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_steps", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--resume_from_checkpoint")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    words = tokenizer()
    config = GPT2Config(
        vocab_size=len(words), n_positions=128, n_embd=32, n_layer=1, n_head=2,
        bos_token_id=words.eos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.config._name_or_path = str(Path(__file__).parent)
    common = {
        "output_dir": args.output_dir, "max_steps": args.max_steps, "save_steps": args.save_steps, "logging_steps": 1,
        "seed": 1, "use_cpu": True, "report_to": [], "bf16": False, "learning_rate": 1e-3,
    }  # fmt: skip
    if args.method == "sft":
        trainer = SFTTrainer(
            model=model, args=SFTConfig(**common, per_device_train_batch_size=4, max_length=64),
            train_dataset=Dataset.from_dict({"text": LINES}), processing_class=words, callbacks=[Slow()],
        )  # fmt: skip
    else:
        settings = GRPOConfig(
            **common, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, temperature=1.0
        )

        def short(completions: list[str], **given: object) -> list[float]:
            return [-float(len(text)) / 10 for text in completions]

        trainer = GRPOTrainer(
            model=model, args=settings, train_dataset=Dataset.from_dict({"prompt": [line[:20] for line in LINES]}),
            processing_class=words, reward_funcs=short, callbacks=[Slow()],
        )  # fmt: skip
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
