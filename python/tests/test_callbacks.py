"""The callbacks against the hooks of their trainers, in the order in which those call them.

The real trainers run in ``test_frameworks.py``.
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
    name, version = "test", 7

    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step):
        self.calls.append((dict(metrics), step))

    def keys(self):
        return [sorted(metrics) for metrics, _ in self.calls]


class Trainer:
    """The interface of Lightning 2.x that the callback touches, and its order of hooks."""

    sanity_checking = False

    def __init__(self, callback, logger=None, every=1, devices=(0,), zero=True, accumulate=1, logs=False):
        self.callback, self.log_every_n_steps = callback, every
        self.loggers = logger if isinstance(logger, list) else [logger] if logger else []
        self.device_ids, self.is_global_zero, self.accumulate = list(devices), zero, accumulate
        self.global_step, self.should_stop, self.logs = 0, False, logs
        self.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0))

    @property
    def logger(self):
        return self.loggers[0] if self.loggers else None

    @property
    def _logger_connector(self):
        step = self.fit_loop.epoch_loop._batches_that_stepped + 1
        return SimpleNamespace(should_update_logs=step % self.log_every_n_steps == 0 or self.should_stop)

    def fit(self, batches, epochs=1, stop_at=None):
        callback, loop = self.callback, self.fit_loop.epoch_loop
        callback.setup(self, None, "fit")
        callback.on_train_start(self, None)
        for self.current_epoch in range(epochs):
            callback.on_train_epoch_start(self, None)
            for batch in range(batches):
                callback.on_train_batch_start(self, None, None, batch)
                steps = (batch + 1) % self.accumulate == 0
                self.global_step += steps
                self.should_stop = stop_at is not None and self.global_step >= stop_at
                callback.on_train_batch_end(self, None, None, None, batch)
                if self.logs:
                    for logger in self.loggers:
                        logger.log_metrics({"loss": 1.0 / self.global_step}, step=loop._batches_that_stepped)
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

    def test_torchs_uuid_decides(self):
        self.answer = {"gpus": [dict(g, cuda=None) for g in TWO_GPUS["gpus"]]}
        uuids = {0: "b", 1: "GPU-a"}
        torch = SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                get_device_properties=lambda i: SimpleNamespace(uuid=uuids[i]),
            )
        )
        expected = {"GPU_0/utilization.gpu - percent": 30.0, "GPU_1/utilization.gpu - percent": 90.0}
        # Also against the ordinals: they are those of the process that gpurun started.
        for answer in (self.answer, TWO_GPUS):
            self.answer = answer
            logger = Logger()
            with mock.patch.dict("sys.modules", torch=torch):
                Trainer(self.monitor(memory_utilization=False), logger, devices=[0, 1]).fit(batches=1)
            self.assertEqual(logger.calls[-1][0], expected)

    def test_an_unknown_device_has_no_point_and_is_said_once(self):
        logger = Logger()
        with self.assertLogs("gpurun", logging.WARNING) as logs:
            Trainer(self.monitor(memory_utilization=False), logger, devices=[1, 7]).fit(batches=3)
        self.assertEqual(len(logs.records), 1)
        self.assertEqual(logger.keys()[-1], ["GPU_1/utilization.gpu - percent"])

    def test_every_logger_gets_the_values(self):
        loggers = [Logger(), Logger()]
        Trainer(self.monitor(memory_utilization=False), loggers).fit(batches=2)
        self.assertEqual(loggers[0].calls, loggers[1].calls)
        self.assertEqual(len(loggers[1].calls), 4)

    def test_what_the_trainer_logs_is_passed_on_with_the_step_that_ended(self):
        logger = Logger()
        trainer = Trainer(self.monitor(), logger, logs=True)
        trainer.fit(batches=3)
        self.listener.until(lambda l: len(l.of("end")) == 1)
        logged = [(m["step"], m["values"]) for m in self.listener.of("log")]
        # The trainer counts batches from 0; the steps are marked from 1.
        self.assertEqual(logged, [(1, {"loss": 1.0}), (2, {"loss": 0.5}), (3, {"loss": 1.0 / 3})])
        self.assertEqual([step for metrics, step in logger.calls if "loss" in metrics], [0, 1, 2])
        # It shows up neither in the trainer's name for the run nor twice.
        self.assertEqual({(logger.name, logger.version) for logger in trainer.loggers}, {("test", 7)})
        trainer.fit(batches=1)
        self.assertEqual(len(trainer.loggers), 2)

    def test_nothing_is_passed_on_without_the_switch_or_on_another_rank(self):
        for switch, zero in ((False, True), (True, False)):
            trainer = Trainer(self.monitor(log=switch), Logger(), logs=True, zero=zero)
            trainer.fit(batches=2)
        self.listener.until(lambda l: len(l.of("end")) == 2)
        self.assertEqual(self.listener.of("log"), [])

    def test_names_of_lightning(self):
        logger = Logger()
        monitor = self.monitor(names="lightning", temperature=True, fan_speed=True)
        Trainer(monitor, logger, devices=[1]).fit(batches=2)
        expected = {
            "device_id: 1/utilization.gpu (%)": 30.0,
            "device_id: 1/memory.used (MB)": 100.0,
            "device_id: 1/memory.free (MB)": 200.0,
            "device_id: 1/utilization.memory (%)": 7.0,
            "device_id: 1/fan.speed (%)": 40.0,
            "device_id: 1/temperature.gpu (\N{DEGREE SIGN}C)": 50.0,
            "device_id: 1/temperature.memory (\N{DEGREE SIGN}C)": 60.0,
        }
        self.assertEqual(logger.calls[-1][0], expected)
        # At the number of batches that stepped, which is that of the batch from 0.
        self.assertEqual([step for _, step in logger.calls], [0, 0, 1, 1])
        with self.assertRaisesRegex(ValueError, "'luxonis', 'lightning'"):
            self.monitor(names="wandb")

    def test_phases_have_tags_of_one_vocabulary(self):
        callback = self.monitor()
        trainer = Trainer(callback, Logger())
        callback.setup(trainer, None, "fit")
        trainer.sanity_checking = True
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        trainer.sanity_checking = False
        callback.on_train_start(trainer, None)
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        callback.on_train_end(trainer, None)
        for phase in ("validate", "test", "predict"):
            callback.setup(trainer, None, phase)
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        callback.on_test_start(trainer, None)
        callback.on_test_end(trainer, None)
        callback.on_predict_start(trainer, None)
        callback.on_predict_end(trainer, None)
        self.listener.until(lambda l: len(l.of("end")) == 6)
        tags = [m.get("tag") for m in self.listener.of("begin", "end")]
        inside = ["train", "validate", None, None]
        self.assertEqual(tags, ["sanity_check", None, *inside, "validate", None, "test", None, "predict", None])

    def test_warnings_come_from_one_process_of_a_node(self):
        for variable in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
            for rank, level in (("0", logging.WARNING), ("1", logging.DEBUG)):
                with self.subTest(variable, rank=rank):
                    fresh(None, **{variable: rank})
                    from gpurun.lightning import GPUStatsMonitor

                    with self.assertLogs("gpurun", logging.DEBUG) as logs:
                        Trainer(GPUStatsMonitor(), Logger()).fit(batches=1)
                    self.assertEqual([record.levelno for record in logs.records], [level])

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
        self.assertEqual([m["epoch"] for m in self.listener.of("epoch")], [0, 1])
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
    def setUp(self):
        self.listener = Listener()
        self.addCleanup(self.listener.close)
        fresh(self.listener.path)
        from gpurun.huggingface import GpurunCallback

        self.callback = GpurunCallback()
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.control = SimpleNamespace(should_evaluate=False)

    def call(self, hook, evaluate=False, **kwargs):
        self.control.should_evaluate = evaluate
        getattr(self.callback, hook)(None, self.state, self.control, **kwargs)

    def said(self, ends):
        self.listener.until(lambda l: len(l.of("end")) == ends)
        said = self.listener.of("begin", "end", "epoch", "step", "log")
        return [(m["op"], m.get("tag") or m.get("step") or m.get("epoch")) for m in said]

    def step(self, number, **kwargs):
        self.call("on_step_begin")
        self.state.global_step = number
        self.call("on_step_end", **kwargs)

    def test_steps_epochs_evaluation_and_scalars(self):
        self.call("on_train_begin", model=None)
        # What the trainer has after two epochs.
        self.state.epoch = 1.9999999999999996
        self.call("on_epoch_begin")
        self.step(1)
        # The evaluation begins with the hook that asks for it, before its first batch.
        self.step(2, evaluate=True)
        self.call("on_log", logs={"loss": 0.5, "note": "text"})
        self.call("on_evaluate", metrics={})
        self.call("on_epoch_end", evaluate=True)
        self.call("on_evaluate", metrics={})
        self.call("on_train_end")
        log, end = ("log", 2), ("end", None)
        validate = ("begin", "validate")
        expected = [("begin", "train"), ("epoch", 2), ("step", 1), ("step", 2), validate, log, end, validate, end, end]
        self.assertEqual(self.said(3), expected)
        self.assertEqual(self.listener.of("log")[0]["values"], {"loss": 0.5})
        begins = [(m["step"], m["t"]) for m in self.listener.of("step_begin")]
        self.assertEqual(begins, [(m["step"], m["began"]) for m in self.listener.of("step")])

    def test_an_evaluation_that_is_called_off_ends_with_the_next_step(self):
        self.call("on_train_begin")
        self.step(1, evaluate=True)
        self.step(2)
        self.call("on_train_end")
        end = ("end", None)
        expected = [("begin", "train"), ("step", 1), ("begin", "validate"), end, ("step", 2), end]
        self.assertEqual(self.said(2), expected)


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
        said = [m.get("step", m.get("epoch")) for m in listener.of("epoch", "step")]
        self.assertEqual(said, [0, 1, 2, 1, 3, 4])
        self.assertEqual([m["step"] for m in listener.of("log")], [2, 4])
        self.assertEqual(listener.of("log")[0]["values"], {"loss": 0.5, "val_loss": 0.75})
        callback.on_test_begin()
        callback.on_test_end()
        callback.on_predict_begin()
        callback.on_predict_end()
        listener.until(lambda l: len(l.of("end")) == 5)
        tags = [m["tag"] for m in listener.of("begin")]
        self.assertEqual(tags, ["train", "validate", "validate", "test", "predict"])

    def test_batches_that_run_together_are_steps_of_equal_length(self):
        listener = Listener()
        self.addCleanup(listener.close)
        fresh(listener.path)
        from gpurun.keras import GpurunCallback

        callback = GpurunCallback()
        callback.on_train_begin()
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for first, last in ((0, 3), (4, 7), (8, 9)):
                callback.on_train_batch_begin(first)
                callback.on_train_batch_end(last)
        callback.on_train_end()
        listener.until(lambda l: l.of("end"))
        steps = listener.of("step")
        self.assertEqual([m["step"] for m in steps], [4, 8, 10, 14, 18, 20])
        self.assertEqual([m["steps"] for m in steps], [4, 4, 2, 4, 4, 2])
        self.assertEqual([m["step"] for m in listener.of("step_begin")], [1, 5, 9, 11, 15, 19])


if __name__ == "__main__":
    unittest.main()
