"""The model that `char_lm.py` trains, its generator and its text: the Python standard library and nothing else."""

from __future__ import annotations

# This runs on the pod's own python3, 3.9 or newer: no zip(strict=), no newer syntax.
# ruff: noqa: B905
import math
import re
import sys
from array import array
from operator import mul

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,'"
LETTERS = len(ALPHABET)
CONTEXT = 3  # characters it looks back
EMBED = 6
HIDDEN = 24
INPUT = CONTEXT * EMBED
SHAPES = ((LETTERS, EMBED), (HIDDEN, INPUT), (1, HIDDEN), (LETTERS, HIDDEN), (1, LETTERS))
"""Rows and columns of: embedding, hidden weights and biases, output weights and biases."""

Matrix = list[list[float]]  # rows
Passed = tuple[list[float], list[float], list[float]]
"""One character's way through the model: input, hidden layer, chance of each character."""


class Random:
    """splitmix64: a generator whose whole state is one number that fits in a checkpoint."""

    def __init__(self, state: int) -> None:
        self.state = state & 0xFFFF_FFFF_FFFF_FFFF

    def bits(self) -> int:
        self.state = (self.state + 0x9E37_79B9_7F4A_7C15) & 0xFFFF_FFFF_FFFF_FFFF
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
        z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
        return z ^ (z >> 31)

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        return (self.bits() >> 11) / (1 << 53)

    def below(self, limit: int) -> int:
        return self.bits() % limit

    def pick(self, chances: list[float]) -> int:
        left = self.unit()
        for index, chance in enumerate(chances):
            left -= chance
            if left < 0:
                return index
        return len(chances) - 1


def corpus() -> list[int]:
    """The text, in lower case, as indices into ALPHABET; whatever else it holds became a space."""
    from pydoc_data.topics import topics

    text = " ".join(topics[name] for name in sorted(topics)).lower()
    indices = {ord(char): index for index, char in enumerate(ALPHABET)}
    return list(re.sub(r"[^a-z.,']+", " ", text).translate(indices).encode("ascii"))


class Model:
    """Embeddings of the last characters -> tanh layer -> softmax over the alphabet, with Adam."""

    def __init__(self, rng: Random) -> None:
        def fresh(rows: int, columns: int) -> Matrix:
            scale = 0.0 if rows == 1 else 1 / math.sqrt(columns)
            return [[(2 * rng.unit() - 1) * scale for _ in range(columns)] for _ in range(rows)]

        self.weights = [fresh(*shape) for shape in SHAPES]
        self.first = zeros()  # Adam's moments
        self.second = zeros()
        self.updates = 0

    def forward(self, context: list[int]) -> Passed:
        """Input, hidden layer and the chance of each character, given the indices of the last CONTEXT ones."""
        embed, hidden_w, (hidden_b,), out_w, (out_b,) = self.weights
        inputs = [value for index in context for value in embed[index]]
        hidden = [math.tanh(sum(map(mul, row, inputs)) + bias) for row, bias in zip(hidden_w, hidden_b)]
        logits = [sum(map(mul, row, hidden)) + bias for row, bias in zip(out_w, out_b)]
        top = max(logits)
        powers = [math.exp(logit - top) for logit in logits]
        total = sum(powers)
        return inputs, hidden, [power / total for power in powers]

    def backward(
        self,
        grads: list[Matrix],
        context: list[int],
        passed: Passed,
        target: int,
        weight: float,
    ) -> None:
        """Add to `grads` the gradient of -weight * log(chance of target)."""
        inputs, hidden, chances = passed
        embed_g, hidden_wg, hidden_bg, out_wg, out_bg = grads
        slopes = [weight * chance for chance in chances]
        slopes[target] -= weight
        back = [0.0] * HIDDEN
        for index, (slope, row) in enumerate(zip(slopes, self.weights[3])):
            out_wg[index] = [grad + slope * value for grad, value in zip(out_wg[index], hidden)]
            back = [part + slope * value for part, value in zip(back, row)]
        out_bg[0] = [grad + slope for grad, slope in zip(out_bg[0], slopes)]

        slopes = [grad * (1.0 - value * value) for grad, value in zip(back, hidden)]
        back = [0.0] * INPUT
        for index, (slope, row) in enumerate(zip(slopes, self.weights[1])):
            hidden_wg[index] = [grad + slope * value for grad, value in zip(hidden_wg[index], inputs)]
            back = [part + slope * value for part, value in zip(back, row)]
        hidden_bg[0] = [grad + slope for grad, slope in zip(hidden_bg[0], slopes)]
        for place, index in enumerate(context):
            part = back[place * EMBED : (place + 1) * EMBED]
            embed_g[index] = [grad + value for grad, value in zip(embed_g[index], part)]

    def update(self, grads: list[Matrix], rate: float) -> None:
        """One step of Adam."""
        self.updates += 1
        rate *= math.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates)
        for weights, firsts, seconds, matrix in zip(self.weights, self.first, self.second, grads):
            for index, grad in enumerate(matrix):
                first = [0.9 * m + 0.1 * g for m, g in zip(firsts[index], grad)]
                second = [0.999 * v + 0.001 * g * g for v, g in zip(seconds[index], grad)]
                weights[index] = [
                    w - rate * m / (math.sqrt(v) + 1e-8) for w, m, v in zip(weights[index], first, second)
                ]
                firsts[index], seconds[index] = first, second

    def sample(self, seed: int, length: int = 48) -> str:
        """A few words of its own; draws from a generator of its own, so that looking changes nothing."""
        rng = Random(seed)
        written = [0] * CONTEXT
        for _ in range(length):
            written.append(rng.pick(self.forward(written[-CONTEXT:])[2]))
        return "".join(ALPHABET[index] for index in written).strip()


def zeros() -> list[Matrix]:
    return [[[0.0] * columns for _ in range(rows)] for rows, columns in SHAPES]


def pack(matrices: list[Matrix]) -> bytes:
    """All numbers as little-endian doubles, row after row."""
    numbers = array("d", (value for matrix in matrices for row in matrix for value in row))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes) -> list[Matrix]:
    numbers = array("d")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != sum(rows * columns for rows, columns in SHAPES):
        raise ValueError(f"{len(numbers)} numbers")
    matrices: list[Matrix] = []
    at = 0
    for rows, columns in SHAPES:
        matrices.append([numbers[at + row * columns : at + (row + 1) * columns].tolist() for row in range(rows)])
        at += rows * columns
    return matrices
