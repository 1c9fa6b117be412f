"""The callbacks in the real trainers, on the CPU; each test is skipped where its framework is not installed.

    pip install lightning transformers accelerate keras jax
    cd python && python -m unittest tests.test_frameworks

``tests/frameworks`` installs what can be had of them and runs these tests, and others through the real gpurun.
"""

import importlib.util
import os
import tempfile
import time
import unittest

from .listener import Listener, fresh


def needs(*modules):
    """Skips a test where one of these is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


class Real(unittest.TestCase):
    def setUp(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.listener = Listener()
        self.addCleanup(self.listener.close)
        fresh(self.listener.path)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def tags(self):
        """Full paths of the tags, in the order in which they began, with their lengths in seconds."""
        open_tags, done = [], []
        for message in self.listener.of("begin", "end"):
            if message["op"] == "begin":
                path = "/".join([tag for tag, *_ in open_tags] + [message["tag"]])
                open_tags.append((message["tag"], message["span"], len(done), message["t"]))
                done.append([path, None])
            else:
                _, _, place, began = open_tags.pop()
                done[place][1] = (message["t"] - began) / 1e9
        self.assertEqual(open_tags, [])
        return done

    def steps(self):
        """Numbers of the steps, with the number of the epoch that each was in."""
        epoch, steps = None, []
        for message in self.listener.of("epoch", "step"):
            if message["op"] == "epoch":
                epoch = message["epoch"]
            else:
                steps.append((message["step"], epoch))
        return steps

    def logged(self, name):
        return {m["step"]: m["values"][name] for m in self.listener.of("log") if name in m["values"]}

    @needs("lightning")
    def test_lightning(self):
        import lightning.pytorch as pl
        import torch
        from lightning.pytorch.loggers import CSVLogger
        from torch.utils.data import DataLoader, TensorDataset

        from gpurun.lightning import GPUStatsMonitor

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, batch_idx):
                # The number of the step that this batch makes, from 1.
                self.log("number", float(self.global_step + 1))
                return self.layer(batch[0]).pow(2).mean()

            def validation_step(self, batch, batch_idx):
                self.log("val_loss", self.layer(batch[0]).pow(2).mean())

            test_step = predict_step = validation_step

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
        loggers = [CSVLogger(self.directory, name=name) for name in ("one", "two")]
        callback = GPUStatsMonitor(intra_step_time=True)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=loggers,
            log_every_n_steps=1,
            callbacks=[callback],
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.directory,
        )
        model = Model()
        with self.assertLogs("gpurun", "WARNING") as logs:
            trainer.fit(model, data, data)
        self.assertIn("uses no GPU", logs.output[0])
        trainer.validate(model, data, verbose=False)
        trainer.test(model, data, verbose=False)
        self.listener.until(lambda l: len(l.of("end")) == 6)
        self.assertEqual(
            [path for path, _ in self.tags()],
            ["sanity_check", "train", "train/validate", "train/validate", "validate", "test"],
        )
        self.assertEqual(self.steps(), [(n, (n - 1) // 4) for n in range(1, 9)])
        self.assertEqual(self.logged("number"), {n: float(n) for n in range(1, 9)})
        self.assertEqual(set(self.logged("val_loss")), {4, 8})
        for logger in loggers:
            with open(os.path.join(logger.log_dir, "metrics.csv"), encoding="utf-8") as file:
                self.assertIn("batch_time/intra_step (ms)", file.readline())

    @needs("transformers", "accelerate", "torch")
    def test_transformers(self):
        import torch
        from transformers import Trainer, TrainingArguments

        from gpurun.huggingface import GpurunCallback

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def forward(self, x, labels):
                if not self.training:
                    time.sleep(0.2)
                out = self.layer(x)
                return {"loss": (out - labels).pow(2).mean(), "logits": out}

        data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(32)]
        for strategy, evaluations in (("steps", 4), ("epoch", 2)):
            with self.subTest(strategy):
                self.listener.messages.clear()
                arguments = TrainingArguments(
                    self.directory,
                    per_device_train_batch_size=8,
                    per_device_eval_batch_size=16,
                    num_train_epochs=2,
                    eval_strategy=strategy,
                    eval_steps=2,
                    logging_steps=1,
                    report_to=[],
                    save_strategy="no",
                    use_cpu=True,
                    disable_tqdm=True,
                )
                callback = GpurunCallback()
                trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
                trainer.train()
                self.listener.until(lambda l: len(l.of("end")) == evaluations + 1)
                paths = [path for path, _ in self.tags()]
                self.assertEqual(paths, ["train"] + ["train/validate"] * evaluations)
                # Two batches of 0.2 s: it begins before the first of them.
                for path, seconds in self.tags()[1:]:
                    self.assertGreaterEqual(seconds, 0.4, path)
                self.assertEqual(self.steps(), [(n, (n - 1) // 4) for n in range(1, 9)])
                self.assertEqual(set(self.logged("loss")), set(range(1, 9)))
                self.assertEqual(len(self.logged("eval_loss")), evaluations)

    @needs("keras", "jax")
    def test_keras(self):
        os.environ["KERAS_BACKEND"] = "jax"
        import keras
        import numpy

        from gpurun.keras import GpurunCallback

        x = numpy.random.rand(128, 4).astype("float32")
        y = numpy.random.rand(128, 1).astype("float32")
        for together in (1, 4):
            with self.subTest(steps_per_execution=together):
                self.listener.messages.clear()
                model = keras.Sequential([keras.layers.Dense(1)])
                model.compile("sgd", "mse", steps_per_execution=together)
                callback = GpurunCallback()
                data = {"batch_size": 8, "callbacks": [callback], "verbose": 0}
                model.fit(x, y, epochs=2, validation_data=(x, y), **data)
                model.evaluate(x, y, **data)
                model.predict(x, **data)
                self.listener.until(lambda l: len(l.of("end")) == 5)
                paths = [path for path, _ in self.tags()]
                self.assertEqual(paths, ["train", "train/validate", "train/validate", "test", "predict"])
                steps = range(together, 33, together)
                self.assertEqual(self.steps(), [(n, (n - 1) // 16) for n in steps])
                self.assertEqual(sum(m.get("steps", 1) for m in self.listener.of("step")), 32)
                self.assertEqual(set(self.logged("val_loss")), {16, 32})


if __name__ == "__main__":
    unittest.main()
