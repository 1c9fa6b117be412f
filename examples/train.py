"""A small but real training job in standard-library Python.

A small neural language model (three letters of context, one hidden layer, softmax over the next
letter) learns English from the standard library's docstrings. Loader worker
processes cut the text into batches, as a data loader would; the parent trains. It prints its loss,
which falls, and the GPUs it was given. It uses no GPU: it shows what gpurun sees of any job.

    gpurun --log metrics.csv -- python3 examples/train.py
"""

import argparse
import math
import multiprocessing
import os
import random
import signal
import sys
import time

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
SIZE = len(ALPHABET)
CONTEXT = 3


def corpus():
    """Real English text that every Python installation carries, reduced to the alphabet."""
    import argparse as a
    import asyncio
    import collections
    import logging
    import random as r
    import tarfile
    import textwrap
    import unittest

    parts = []
    for module in (a, asyncio, collections, logging, r, tarfile, textwrap, unittest, os, sys):
        parts.append(module.__doc__)
        for name in sorted(dir(module)):
            parts.append(getattr(getattr(module, name), "__doc__", None))
    text = " ".join(" ".join(part for part in parts if isinstance(part, str)).lower().split())
    return [ALPHABET.index(c) for c in text if c in ALPHABET]


def load(text, batches, seed, size):
    """A loader worker: draws random windows of the text until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rng = random.Random(seed)
    while True:
        starts = [rng.randrange(len(text) - CONTEXT - 1) for _ in range(size)]
        batches.put([(text[s:s + CONTEXT], text[s + CONTEXT]) for s in starts])


class Model:
    """Letters to a hidden layer (a sum of embeddings, tanh) to a softmax over the next letter."""

    def __init__(self, hidden, rng):
        self.hidden = hidden
        self.embed = [[[rng.gauss(0, 0.3) for _ in range(hidden)] for _ in range(SIZE)] for _ in range(CONTEXT)]
        self.out = [[rng.gauss(0, 0.3) for _ in range(hidden)] for _ in range(SIZE)]
        self.bias = [0.0] * SIZE

    def step(self, batch, rate):
        """One pass of gradient descent over a batch; returns the mean loss in nats per letter."""
        loss = 0.0
        for context, target in batch:
            rows = [self.embed[i][letter] for i, letter in enumerate(context)]
            h = [math.tanh(sum(column)) for column in zip(*rows)]
            logits = [b + sum(x * w for x, w in zip(h, row)) for b, row in zip(self.bias, self.out)]
            top = max(logits)
            exps = [math.exp(x - top) for x in logits]
            total = sum(exps)
            loss -= math.log(exps[target] / total)
            grad_h = [0.0] * self.hidden
            for letter in range(SIZE):
                g = exps[letter] / total - (letter == target)
                row = self.out[letter]
                self.bias[letter] -= rate * g
                for k in range(self.hidden):
                    grad_h[k] += g * row[k]
                    row[k] -= rate * g * h[k]
            for k in range(self.hidden):
                g = rate * grad_h[k] * (1 - h[k] * h[k])
                for row in rows:
                    row[k] -= g
        return loss / len(batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to train (default 10)")
    parser.add_argument("--workers", type=int, default=2, help="loader processes (default 2)")
    parser.add_argument("--batch", type=int, default=64, help="letters per step (default 64)")
    options = parser.parse_args()

    print("CUDA_VISIBLE_DEVICES =", os.environ.get("CUDA_VISIBLE_DEVICES", "(not set)"), flush=True)
    text = corpus()
    batches = multiprocessing.Queue(maxsize=4)
    loaders = [
        multiprocessing.Process(target=load, args=(text, batches, seed, options.batch), daemon=True)
        for seed in range(options.workers)
    ]
    for loader in loaders:
        loader.start()

    model = Model(hidden=24, rng=random.Random(0))
    end = time.monotonic() + options.seconds
    step, smooth, first = 0, None, None
    while time.monotonic() < end or step == 0:
        loss = model.step(batches.get(), rate=0.1)
        step += 1
        first = first if first is not None else loss
        smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
        if step % 100 == 0:
            print(f"step {step:5d}  loss {smooth:.3f}", flush=True)
    for loader in loaders:
        loader.terminate()
        loader.join()
    print(f"{step} steps: loss {first:.3f} -> {smooth:.3f} nats per letter", flush=True)


if __name__ == "__main__":
    main()
