"""Lightning on synthetic images of digits, with gpurun's drop-in ``GPUStatsMonitor``.

    pip install lightning
    gpurun -n 1 --log metrics.csv -- python examples/lightning_mnist_like.py
    gpurun --log metrics.csv -- python examples/lightning_mnist_like.py --accelerator cpu

The trainer's own logger gets ``GPU_0/utilization.gpu - percent`` and ``batch_time/intra_step (ms)`` every few steps (no GPU
values on a CPU); gpurun's log gets the same steps as rows of kind ``step``, and the phases as tags.
"""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpurun.lightning import GPUStatsMonitor


def digits(count: int, seed: int) -> TensorDataset:
    """Images of 28 x 28 in which the class is a bright row; no download."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = 0.3 * torch.rand(count, 1, 28, 28, generator=generator)
    images[torch.arange(count), 0, labels * 2 + 4] += 0.7
    return TensorDataset(images, labels)


class Classifier(pl.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = self.loss(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        hits = (self.layers(images).argmax(dim=1) == labels).float().mean()
        self.log("val_accuracy", hits, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=int, default=5, help="log every so many steps")
    parser.add_argument("--out", default="lightning_logs")
    options = parser.parse_args()

    pl.seed_everything(0)
    monitor = GPUStatsMonitor(intra_step_time=True, inter_step_time=True, temperature=True)
    trainer = pl.Trainer(
        accelerator=options.accelerator,
        devices=options.devices if options.devices == "auto" else int(options.devices),
        max_epochs=options.epochs,
        log_every_n_steps=options.every,
        logger=CSVLogger(options.out),
        callbacks=[monitor],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(),
        DataLoader(digits(2048, seed=1), batch_size=64, shuffle=True),
        DataLoader(digits(512, seed=2), batch_size=64),
    )
    accuracy = float(trainer.callback_metrics["val_accuracy"])
    print(f"{trainer.global_step} steps, val_accuracy {accuracy:.3f}, logged to {trainer.logger.log_dir}")


if __name__ == "__main__":
    main()
