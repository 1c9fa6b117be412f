"""A training loop that tells gpurun about its epochs and steps. Needs nothing but the gpurun module.

    gpurun --log metrics.csv --every-n-steps 10 -- python examples/train_steps.py
    python examples/train_steps.py        # runs the same without gpurun

Afterwards ``metrics.csv`` has, beside its periodic windows, one set of rows (kind ``tag``) for each epoch and each
evaluation, and one (kind ``step``) for every ten steps, with the times of the steps and samples a second.
"""

import argparse
import math
import random
import time

import gpurun


def train_batch(weight: float, seconds: float) -> float:
    """Stands for a forward and a backward pass: keeps a CPU busy and gives a loss."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        math.sqrt(weight)
    return 1.0 / (1.0 + weight) + random.uniform(-0.01, 0.01)


@gpurun.tag("evaluate")
def evaluate(weight: float) -> float:
    """The decorator puts the whole call under a tag."""
    time.sleep(0.1)
    return 1.0 / (1.0 + weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-seconds", type=float, default=0.02)
    options = parser.parse_args()

    print("gpurun listens" if gpurun.is_active() else "running without gpurun")
    step, weight = 0, 0.0
    for epoch in range(options.epochs):
        # The number stands in the column `epoch` of the rows from here on.
        gpurun.epoch(epoch)
        with gpurun.tag("train"):
            for _ in range(options.batches):
                time.sleep(0.002)  # the loader: shows up as inter_step
                step += 1
                with gpurun.step(step, samples=64):
                    loss = train_batch(weight, options.batch_seconds)
                weight += 0.05
                if step % 10 == 0:
                    gpurun.log({"loss": loss}, step=step)
            seen = gpurun.collect()  # the tag so far, with nvitop's keys
        for key in ("run/train/duration (s)", "run/train/host/cpu_percent (%)/mean"):
            if key in seen:
                print(f"epoch {epoch}: {key} = {seen[key]:.1f}")
        print(f"epoch {epoch}: loss {evaluate(weight):.3f}")
    for gpu in gpurun.snapshot(parts=["gpus"]).get("gpus", []):
        utilization = gpu["metrics"].get("gpu_utilization (%)", {}).get("mean")
        print(f"cuda:{gpu['cuda']} is {gpu['name']}, {gpu['uuid']}: utilisation {utilization} %")


if __name__ == "__main__":
    main()
