"""The callbacks against the hooks of their trainers, in the order in which those call them.

The real Lightning `Trainer` runs in ``examples/lightning_mnist_like.py`` (see the test that is named after it).
"""

import logging
import subprocess
import unittest
from types import SimpleNamespace
from unittest import mock

from .listener import Listener, fresh


def value(mean, last=None):
    return {"mean": mean, "min": mean, "max": mean, "last": mean if last is None else last, "samples": 1, "missing": 0}


def gpu(cuda, index, uuid, **metrics):
    return {"gpu": index, "mig": None, "cuda": cuda, "uuid": uuid, "name": "Test GPU", "metrics": metrics}


TWO_GPUS = {
    "gpus": [
        # Not in the order of the ordinals: joined by ordinal, never by position.
        gpu(
            1,
            5,
            "GPU-b",
            **{
                "gpu_utilization (%)": value(30.0, 99.0),
                "memory_used (MiB)": value(1.0, 100.0),
                "memory_free (MiB)": value(1.0, 200.0),
                "memory_utilization (%)": value(7.0),
                "fan_speed (%)": value(40.0),
                "temperature (C)": value(50.0),
                "memory_temperature (C)": value(60.0),
                "power_usage (W)": value(1000.0),
            },
        ),
        gpu(
            0,
            2,
            "GPU-a",
            **{
                "gpu_utilization (%)": value(90.0),
                "memory_used (MiB)": value(8.0),
                "memory_free (MiB)": value(9.0),
                "memory_utilization (%)": value(None),
                "fan_speed (%)": value(None),
                "temperature (C)": value(55.0),
                "memory_temperature (C)": value(None),
            },
        ),
    ]
}


class Logger:
    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step):
        self.calls.append((dict(metrics), step))

    def keys(self):
        return [sorted(metrics) for metrics, _ in self.calls]


class Trainer:
    """The interface of Lightning 2.x that the callback touches, and its order of hooks."""

    def __init__(self, callback, logger=None, every=1, devices=(0,), zero=True, accumulate=1):
        self.callback, self.logger, self.log_every_n_steps = callback, logger, every
        self.device_ids, self.is_global_zero, self.accumulate = list(devices), zero, accumulate
        self.global_step, self.should_stop = 0, False
        self.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0))

    @property
    def _logger_connector(self):
        step = self.fit_loop.epoch_loop._batches_that_stepped + 1
        return SimpleNamespace(should_update_logs=step % self.log_every_n_steps == 0 or self.should_stop)

    def fit(self, batches, epochs=1, stop_at=None):
        callback, loop = self.callback, self.fit_loop.epoch_loop
        callback.setup(self, None, "fit")
        callback.on_train_start(self, None)
        for _ in range(epochs):
            callback.on_train_epoch_start(self, None)
            for batch in range(batches):
                callback.on_train_batch_start(self, None, None, batch)
                steps = (batch + 1) % self.accumulate == 0
                self.global_step += steps
                self.should_stop = stop_at is not None and self.global_step >= stop_at
                callback.on_train_batch_end(self, None, None, None, batch)
                loop._batches_that_stepped += steps
        callback.on_train_end(self, None)


class MonitorTest(unittest.TestCase):
    answer = TWO_GPUS

    def setUp(self):
        self.listener = Listener(answer=lambda m: self.answer if m["op"] == "snapshot" else None)
        self.addCleanup(self.listener.close)
        self.gpurun = fresh(self.listener.path)
        from gpurun import lightning

        self.lightning = lightning
        # No hook may wait for long; a loaded machine may answer late all the same.
        lightning._PATIENCE = 60
        # Nothing is ever spawned.
        spawn = mock.patch.object(subprocess, "Popen", side_effect=AssertionError("spawned"))
        spawn.start()
        self.addCleanup(spawn.stop)

    def monitor(self, **flags):
        return self.lightning.GPUStatsMonitor(**flags)

    def test_default_fields_every_n_steps(self):
        logger = Logger()
        Trainer(self.monitor(intra_step_time=True), logger, every=3).fit(batches=10, epochs=2)
        fields = {
            "GPU_0/utilization.gpu - percent",
            "GPU_0/memory.used - MB",
            "GPU_0/memory.free - MB",
        }
        for metrics, _ in logger.calls:
            self.assertEqual(set(metrics) - {"batch_time/intra_step (ms)"}, fields)
            self.assertEqual(metrics["GPU_0/utilization.gpu - percent"], 90.0)
        intra = [step for metrics, step in logger.calls if "batch_time/intra_step (ms)" in metrics]
        self.assertEqual(len(intra), 20 // 3)
        self.assertEqual(intra, [3, 6, 9, 12, 15, 18])
        # At the start and at the end of each logged batch.
        self.assertEqual([step for _, step in logger.calls], [2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])

    def test_no_query_flag_asks_nothing_and_times_in_order(self):
        logger = Logger()
        flags = dict(memory_utilization=False, gpu_utilization=False, intra_step_time=True, inter_step_time=True)
        trainer = Trainer(self.monitor(**flags), logger)
        trainer.fit(batches=2)
        intra, inter = ["batch_time/intra_step (ms)"], ["batch_time/inter_step (ms)"]
        self.assertEqual(logger.keys(), [intra, inter, intra])
        self.assertEqual([step for _, step in logger.calls], [1, 1, 2])
        self.listener.until(lambda l: len(l.of("end")) == 1)
        self.assertEqual(self.listener.of("snapshot"), [])

    def test_inter_step_time_starts_anew_each_epoch(self):
        logger = Logger()
        flags = dict(memory_utilization=False, gpu_utilization=False, inter_step_time=True)
        Trainer(self.monitor(**flags), logger).fit(batches=3, epochs=2)
        self.assertEqual([step for _, step in logger.calls], [1, 2, 4, 5])

    def test_outside_gpurun_it_says_so_once_and_times_only(self):
        self.listener.close()
        fresh(None)
        from gpurun.lightning import GPUStatsMonitor

        logger = Logger()
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            Trainer(GPUStatsMonitor(intra_step_time=True, temperature=True), logger).fit(batches=3)
        self.assertEqual(len(logs.records), 1)
        self.assertIn("not started by gpurun", logs.output[0])
        self.assertEqual(logger.keys(), [["batch_time/intra_step (ms)"]] * 3)
        self.assertFalse(GPUStatsMonitor.is_available())

    def test_no_logger_is_a_clear_error(self):
        with self.assertRaisesRegex(self.lightning._Misconfiguration, "no logger"):
            Trainer(self.monitor(), logger=None).fit(batches=1)
        # Only training logs; a trainer without a logger may validate.
        self.monitor().setup(Trainer(None), None, "validate")

    def test_no_gpu_in_use_says_so_once_and_times_only(self):
        logger = Logger()
        trainer = Trainer(self.monitor(intra_step_time=True), logger)
        trainer.strategy = SimpleNamespace(root_device=SimpleNamespace(type="cpu"))
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            trainer.fit(batches=2)
        self.assertIn("uses no GPU", logs.output[0])
        self.assertEqual(logger.keys(), [["batch_time/intra_step (ms)"]] * 2)

    def test_devices_are_joined_by_ordinal(self):
        for devices in ([1, 0], [0, 1, 1]):
            logger = Logger()
            Trainer(self.monitor(memory_utilization=False), logger, devices=devices).fit(batches=1)
            expected = {"GPU_0/utilization.gpu - percent": 90.0, "GPU_1/utilization.gpu - percent": 30.0}
            self.assertEqual(logger.calls[-1][0], expected)

    def test_without_ordinals_torchs_uuid_decides(self):
        self.answer = {"gpus": [dict(g, cuda=None) for g in TWO_GPUS["gpus"]]}
        uuids = {0: "b", 1: "GPU-a"}
        torch = SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                get_device_properties=lambda i: SimpleNamespace(uuid=uuids[i]),
            )
        )
        logger = Logger()
        with mock.patch.dict("sys.modules", torch=torch):
            Trainer(self.monitor(memory_utilization=False), logger, devices=[0, 1]).fit(batches=1)
        expected = {"GPU_0/utilization.gpu - percent": 30.0, "GPU_1/utilization.gpu - percent": 90.0}
        self.assertEqual(logger.calls[-1][0], expected)

    def test_an_unknown_device_has_no_point_and_is_said_once(self):
        logger = Logger()
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            Trainer(self.monitor(memory_utilization=False), logger, devices=[1, 7]).fit(batches=3)
        self.assertEqual(len(logs.records), 1)
        self.assertEqual(logger.keys()[-1], ["GPU_1/utilization.gpu - percent"])

    def test_exact_names_and_unknown_values_left_out(self):
        logger = Logger()
        Trainer(self.monitor(fan_speed=True, temperature=True), logger, devices=[0, 1]).fit(batches=1)
        start, end = (metrics for metrics, _ in logger.calls)
        self.assertEqual(
            start,
            {
                "GPU_0/utilization.gpu - percent": 90.0,
                "GPU_0/memory.used - MB": 8.0,
                "GPU_0/memory.free - MB": 9.0,
                "GPU_1/utilization.gpu - percent": 30.0,
                "GPU_1/memory.used - MB": 100.0,
                "GPU_1/memory.free - MB": 200.0,
                "GPU_1/utilization.memory - percent": 7.0,
            },
        )
        at_end = {
            "GPU_0/temperature.gpu - \N{DEGREE SIGN}C": 55.0,
            "GPU_1/fan.speed - percent": 40.0,
            "GPU_1/temperature.gpu - \N{DEGREE SIGN}C": 50.0,
            "GPU_1/temperature.memory - \N{DEGREE SIGN}C": 60.0,
        }
        self.assertEqual(end, dict(start, **at_end))

    def test_only_rank_zero_logs_and_every_rank_marks(self):
        logger = Logger()
        Trainer(self.monitor(intra_step_time=True), logger, zero=False).fit(batches=3, epochs=2)
        self.assertEqual(logger.calls, [])
        self.listener.until(lambda l: len(l.of("step")) == 6)
        steps = self.listener.of("step")
        self.assertEqual([m["step"] for m in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([m.get("first", False) for m in steps], [True, False, False, True, False, False])
        self.assertTrue(all(m["began"] <= m["t"] for m in steps))

    def test_accumulated_batches_make_one_step(self):
        Trainer(self.monitor(), Logger(), accumulate=4).fit(batches=8)
        self.listener.until(lambda l: len(l.of("step")) == 2)
        self.assertEqual([m["step"] for m in self.listener.of("step")], [1, 2])

    def test_a_step_that_stops_training_is_logged(self):
        logger = Logger()
        Trainer(self.monitor(intra_step_time=True), logger, every=50).fit(batches=3, stop_at=3)
        self.assertIn("batch_time/intra_step (ms)", logger.calls[-1][0])

    def test_failures_never_reach_the_loop(self):
        class Full(Logger):
            def log_metrics(self, metrics, step):
                raise OSError("No space left on device")

        with self.assertLogs("gpurun", logging.WARNING) as logs:
            Trainer(self.monitor(intra_step_time=True), Full()).fit(batches=3)
        self.assertEqual(len(logs.records), 1)
        self.assertIn("No space left", logs.output[0])

    def test_strange_answers_never_reach_the_loop(self):
        logging.getLogger("gpurun").addHandler(logging.NullHandler())
        for answer in ({}, {"gpus": None}, {"gpus": [1]}, {"gpus": [{"cuda": 0, "metrics": 3}]}, [1]):
            with self.subTest(answer):
                self.answer = answer
                logger = Logger()
                Trainer(self.monitor(intra_step_time=True), logger).fit(batches=2)
                values = [key for keys in logger.keys() for key in keys if key.startswith("GPU_")]
                self.assertEqual(values, [])

    def test_gpurun_dies_in_mid_training(self):
        logger = Logger()
        callback = self.monitor(intra_step_time=True)
        trainer = Trainer(callback, logger)
        trainer.fit(batches=2)
        self.listener.close()
        trainer.fit(batches=2)
        self.assertEqual(logger.keys()[-1], ["batch_time/intra_step (ms)"])


class HuggingFace(unittest.TestCase):
    def test_steps_epochs_evaluation_and_scalars(self):
        listener = Listener()
        self.addCleanup(listener.close)
        fresh(listener.path)
        from gpurun.huggingface import GpurunCallback

        callback = GpurunCallback()
        state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        callback.on_train_begin(None, state, None, model=None)
        callback.on_epoch_begin(None, state, None)
        for step in (1, 2):
            callback.on_step_begin(None, state, None)
            state.global_step = step
            callback.on_step_end(None, state, None)
        callback.on_log(None, state, None, logs={"loss": 0.5, "note": "text"})
        callback.on_prediction_step(None, state, None)
        callback.on_prediction_step(None, state, None)
        callback.on_evaluate(None, state, None, metrics={})
        callback.on_train_end(None, state, None)
        listener.until(lambda l: len(l.of("end")) == 2)
        said = [(m["op"], m.get("tag") or m.get("step")) for _, m in listener.messages[1:]]
        self.assertEqual(
            said,
            [
                ("begin", "train"),
                ("step", 1),
                ("step", 2),
                ("log", 2),
                ("begin", "evaluate"),
                ("end", None),
                ("end", None),
            ],
        )
        self.assertEqual(listener.of("log")[0]["values"], {"loss": 0.5})


class Keras(unittest.TestCase):
    def test_steps_epochs_and_scalars(self):
        listener = Listener()
        self.addCleanup(listener.close)
        fresh(listener.path)
        from gpurun.keras import GpurunCallback

        callback = GpurunCallback()
        callback.on_train_begin()
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for batch in range(2):
                callback.on_train_batch_begin(batch)
                callback.on_train_batch_end(batch, {"loss": 1.0})
            callback.on_test_begin()
            callback.on_test_end()
            callback.on_epoch_end(epoch, {"loss": 0.5, "val_loss": 0.75})
        callback.on_train_end()
        listener.until(lambda l: len(l.of("end")) == 3)
        steps = [(m["step"], m.get("first", False)) for m in listener.of("step")]
        self.assertEqual(steps, [(1, True), (2, False), (3, True), (4, False)])
        self.assertEqual([m["step"] for m in listener.of("log")], [2, 4])
        self.assertEqual(listener.of("log")[0]["values"], {"loss": 0.5, "val_loss": 0.75})


if __name__ == "__main__":
    unittest.main()
