"""Lightning: a drop-in ``GPUStatsMonitor``.

``from gpurun.lightning import GPUStatsMonitor`` has the flags and hooks of the callback of the same name. It logs GPU
values and step times to the trainer's loggers, marks steps and epochs for gpurun, tags ``train``, ``validate``, ``test``,
``predict`` and ``sanity_check``, and passes what the trainer logs on to gpurun's log.

The names of its values are those of luxonis-train (``GPU_0/utilization.gpu - percent``, at ``trainer.global_step``).
Lightning's own callback, which was removed in 1.7, had others (``device_id: 0/utilization.gpu (%)``, at the number of
batches that stepped): ``names="lightning"`` gives those.

What differs from both, on purpose:

* Nothing is spawned: values come from the running gpurun, asked for while the batch computes, at
  most ten times a second.
* A value that is unknown (a fan on a passively cooled card, utilisation of a MIG slice) is left out; the
  older callbacks log a true-looking 0.0.
* Utilisation is the mean of gpurun's current window, not one read at the moment when the GPU is most likely idle.
* A failed read never reaches the training loop. Outside gpurun, or where no GPU is in use, it says so once
  and logs the step times alone.
* Devices are joined by UUID or CUDA ordinal, never by the position of a line.
"""

import importlib
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._client import client
from ._steps import Progress


def _base() -> Tuple[type, type, type]:
    """``Callback``, ``Logger`` and ``MisconfigurationException`` of whichever Lightning the program uses."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    # Both may be installed, and a callback of one is none of the other.
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            framework = importlib.import_module(name)
            loggers = importlib.import_module(name + ".loggers")
            errors = importlib.import_module(name + ".utilities.exceptions")
            logger = getattr(loggers, "Logger", None) or loggers.LightningLoggerBase
            return framework.Callback, logger, errors.MisconfigurationException
        except Exception:  # noqa: BLE001 - absent, or broken in whatever way
            continue
    return object, object, RuntimeError


_Callback, _Logger, _Misconfiguration = _base()


class _Value(NamedTuple):
    """One value of the older callbacks: its name, its unit by naming scheme, and gpurun's metric and statistic."""

    name: str
    unit: Dict[str, str]
    metric: str
    statistic: str


_PERCENT = {"luxonis": " - percent", "lightning": " (%)"}
_MB = {"luxonis": " - MB", "lightning": " (MB)"}
_CELSIUS = {"luxonis": " - \N{DEGREE SIGN}C", "lightning": " (\N{DEGREE SIGN}C)"}

#: What stands before a value's name.
_DEVICE = {"luxonis": "GPU_%d/", "lightning": "device_id: %d/"}

_UTILIZATION = [_Value("utilization.gpu", _PERCENT, "gpu_utilization (%)", "mean")]
_MEMORY = [
    _Value("memory.used", _MB, "memory_used (MiB)", "last"),
    _Value("memory.free", _MB, "memory_free (MiB)", "last"),
    _Value("utilization.memory", _PERCENT, "memory_utilization (%)", "mean"),
]
_FAN = [_Value("fan.speed", _PERCENT, "fan_speed (%)", "last")]
_TEMPERATURE = [
    _Value("temperature.gpu", _CELSIUS, "temperature (C)", "last"),
    _Value("temperature.memory", _CELSIUS, "memory_temperature (C)", "last"),
]

#: Seconds that a hook waits for an answer when it has none that is recent.
_PATIENCE = 0.05

#: An answer of this age in seconds still stands for now: gpurun itself samples once a second by default.
_RECENT = 1.0

#: An answer younger than this in seconds is not asked for again.
_FRESH = 0.1


class _Forwarder(_Logger):  # type: ignore[misc,valid-type]
    """A logger of the trainer that passes everything on to gpurun."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer
        self._first = trainer.loggers[0]

    # The trainer joins the names and versions of its loggers, leaving repetitions out: this one adds nothing.
    @property
    def name(self) -> Any:
        return self._first.name

    @property
    def version(self) -> Any:
        return self._first.version

    def log_metrics(self, metrics: Dict[str, Any], step: Optional[int] = None) -> None:
        # The trainer's `step` is the number of the batch, from 0. Steps are marked with `global_step`, so that this is
        # the step that has just ended.
        if _is_zero(self._trainer):
            client.log(metrics, self._trainer.global_step)

    def log_hyperparams(self, *unused: Any, **unused_too: Any) -> None:
        """Not for gpurun."""


class GPUStatsMonitor(_Callback):  # type: ignore[misc,valid-type]
    """Logs GPU values and step times to the trainer's loggers, and marks steps for gpurun.

    Every ``log_every_n_steps`` steps, at the start and end of the batch, on rank 0, to every logger:
    ``GPU_<i>/utilization.gpu - percent``, ``GPU_<i>/memory.used - MB`` (MiB in truth; the name is kept) and so
    on, ``i`` being the CUDA ordinal. Every rank marks every optimiser step for gpurun.

    :param memory_utilization: used and free memory (MiB) and memory utilisation (%).
    :param gpu_utilization: GPU utilisation (%).
    :param intra_step_time: start to end of a step (ms).
    :param inter_step_time: end of a step to the start of the next (ms); none across epochs.
    :param fan_speed: fan speed (%), at the end of a step.
    :param temperature: GPU and memory temperature (C), at the end of a step.
    :param names: ``"luxonis"``, or ``"lightning"`` for the names and step numbers of Lightning 1.4 to 1.6.
    :param log: whether what the trainer logs (loss, learning rate, ...) goes into gpurun's log too.
    :raises ValueError: ``names`` is neither.
    :raises MisconfigurationException: at the start of ``fit``, where the trainer has no logger.
    """

    def __init__(
        self,
        memory_utilization: bool = True,
        gpu_utilization: bool = True,
        intra_step_time: bool = False,
        inter_step_time: bool = False,
        fan_speed: bool = False,
        temperature: bool = False,
        names: str = "luxonis",
        log: bool = True,
    ) -> None:
        super().__init__()
        if names not in _DEVICE:
            raise ValueError(f"names={names!r}: there are {', '.join(map(repr, _DEVICE))}")
        self._names = names
        self._log = log
        self._intra = intra_step_time
        self._inter = inter_step_time
        self._at_both = (_UTILIZATION if gpu_utilization else []) + (_MEMORY if memory_utilization else [])
        self._at_end = (_FAN if fan_speed else []) + (_TEMPERATURE if temperature else [])
        self._progress = Progress()
        self._device_ids: List[int] = []
        self._asked: Optional[int] = None
        self._latest: Tuple[float, Dict[str, Any]] = (float("-inf"), {})
        # The logged form of the latest answer, for the start and for the end of a step.
        self._named: Dict[int, Dict[str, float]] = {}
        self._began: Optional[float] = None
        self._ended: Optional[float] = None
        self._last_step: Optional[int] = None

    @staticmethod
    def is_available() -> bool:
        """Whether there is a gpurun to ask."""
        return client.active

    # -- hooks ---------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        # A rank that Lightning forked trains, and may speak for itself.
        active = client.connect()
        if stage not in (None, "fit"):
            return
        if not trainer.logger:
            raise _Misconfiguration("Cannot use GPUStatsMonitor callback with Trainer that has no logger.")
        if not active:
            client.warn_once(
                "lightning",
                "GPUStatsMonitor: not started by gpurun, so there are no GPU values; step times only",
            )
        try:
            self._device_ids = _devices_of(trainer)
            # Before Lightning 1.6 a trainer had one logger, and nothing to add to.
            if active and self._log and hasattr(trainer, "loggers"):
                others = [logger for logger in trainer.loggers if not isinstance(logger, _Forwarder)]
                trainer.loggers = [*others, _Forwarder(trainer)]
        except Exception as error:  # noqa: BLE001
            self._fail(error)
        if active and self._wanted() and not self._device_ids:
            client.warn_once("lightning", "GPUStatsMonitor: the trainer uses no GPU; step times only")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._progress.begin("train")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._began = self._ended = None
        self._progress.epoch(getattr(trainer, "current_epoch", None))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        try:
            self._progress.step_begins(int(trainer.global_step) + 1)
            if self._last_step is None:
                self._last_step = int(trainer.global_step)
            self._began = time.monotonic()
            if not _is_zero(trainer) or not _logs_now(trainer):
                return
            if self._asked is None and self._at_both:
                self._ask()
            logs = self._values(self._at_both)
            if self._inter and self._ended is not None:
                logs["batch_time/inter_step (ms)"] = (self._began - self._ended) * 1000
            self._write(trainer, logs)
            # Answered while the batch computes.
            self._ask()
        except Exception as error:  # noqa: BLE001 - nothing reaches the training loop
            self._fail(error)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        try:
            now = time.monotonic()
            self._ended = now
            step = int(trainer.global_step)
            if step != self._last_step:
                # With accumulated gradients several batches make one step.
                self._progress.step_ends(step)
                self._last_step = step
            if not _is_zero(trainer):
                return
            if _logs_now(trainer):
                logs = self._values(self._wanted())
                if self._intra and self._began is not None:
                    logs["batch_time/intra_step (ms)"] = (now - self._began) * 1000
                self._write(trainer, logs)
            if _logs_after(trainer, 1):
                self._ask()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        sanity = getattr(trainer, "sanity_checking", False)
        self._progress.begin("sanity_check" if sanity else "validate")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._progress.end("sanity_check")
        self._progress.end("validate")
        # What validation took is no time between training steps.
        self._ended = None

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._progress.begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._progress.end("test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._progress.begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._progress.end("predict")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._progress.end_all()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._progress.end_all()

    # -- values --------------------------------------------------------------------------------

    def _wanted(self) -> List[_Value]:
        return self._at_both + self._at_end

    def _ask(self) -> None:
        """Asks gpurun ahead, so that no hook has to wait for the answer."""
        if not self._wanted() or not self._device_ids:
            return
        age = time.monotonic() - self._latest[0]
        if self._asked is not None or age < _FRESH:
            return
        metrics = [value.metric for value in self._wanted()]
        self._asked = client.request("snapshot", parts=["gpus"], metrics=metrics)

    def _values(self, keys: List[_Value]) -> Dict[str, float]:
        if not keys or not self._device_ids or not client.active:
            return {}
        now = time.monotonic()
        if self._asked is not None:
            recent = now - self._latest[0] < _RECENT
            answer = client.wait(self._asked, 0.0 if recent else _PATIENCE)
            if answer is not None:
                self._latest = (now, answer)
                self._named.clear()
            if answer is not None or not recent:
                self._asked = None
        if now - self._latest[0] < _RECENT:
            named = self._named.get(len(keys))
            if named is None:
                named = self._named[len(keys)] = _name_values(
                    self._latest[1], self._device_ids, keys, self._names
                )
            return dict(named)
        return {}

    def _write(self, trainer: Any, logs: Dict[str, float]) -> None:
        if not logs:
            return
        step = _stepped(trainer) if self._names == "lightning" else trainer.global_step
        for logger in _loggers(trainer):
            # gpurun has these values already.
            if not isinstance(logger, _Forwarder):
                logger.log_metrics(logs, step=step)

    def _fail(self, error: Exception) -> None:
        client.warn_once("lightning failed", "GPUStatsMonitor: %s: %s", type(error).__name__, error)


def _name_values(
    answer: Dict[str, Any], device_ids: List[int], keys: List[_Value], names: str
) -> Dict[str, float]:
    """The older callbacks' names for gpurun's values; what is unknown has no entry."""
    logs: Dict[str, float] = {}
    gpus = answer.get("gpus") or []
    for device_id in device_ids:
        gpu = _find(gpus, device_id)
        if gpu is None:
            client.warn_once(
                f"cuda:{device_id}", "GPUStatsMonitor: gpurun does not know which GPU cuda:%d is", device_id
            )
            continue
        for name, unit, metric, statistic in keys:
            value = ((gpu.get("metrics") or {}).get(metric) or {}).get(statistic)
            if value is not None:
                logs[_DEVICE[names] % device_id + name + unit[names]] = float(value)
    return logs


def _find(gpus: List[Dict[str, Any]], device_id: int) -> Optional[Dict[str, Any]]:
    # The UUID first: gpurun's ordinals are those of the process that it started. A MIG slice has the UUID of its GPU.
    uuid = _uuid_of(device_id)
    for gpu in gpus:
        if uuid is not None and uuid in (gpu.get("uuid"), str(gpu.get("uuid")).partition("-")[2]):
            return gpu
    for gpu in gpus:
        if gpu.get("cuda") == device_id:
            return gpu
    return None


def _uuid_of(device_id: int) -> Optional[str]:
    """The UUID that torch gives an ordinal, if torch is there and has initialised CUDA."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        return str(torch.cuda.get_device_properties(device_id).uuid)
    except Exception:  # noqa: BLE001 - an older torch has no uuid
        return None


def _devices_of(trainer: Any) -> List[int]:
    """CUDA ordinals that the trainer uses on this node; none on another accelerator."""
    strategy = getattr(trainer, "strategy", None)
    device = getattr(strategy, "root_device", None)
    if device is not None and getattr(device, "type", "cuda") != "cuda":
        return []
    return sorted({int(i) for i in trainer.device_ids})


def _loggers(trainer: Any) -> List[Any]:
    """Every logger of the trainer."""
    return list(getattr(trainer, "loggers", None) or [trainer.logger])


def _is_zero(trainer: Any) -> bool:
    return bool(getattr(trainer, "is_global_zero", True))


def _stepped(trainer: Any) -> int:
    """Batches that ended in an optimiser step so far, as the trainer itself counts for its logs."""
    try:
        return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    except AttributeError:
        return int(trainer.global_step)


def _logs_now(trainer: Any) -> bool:
    try:
        return bool(trainer._logger_connector.should_update_logs)
    except AttributeError:
        return _logs_after(trainer, 0)


def _logs_after(trainer: Any, steps: int) -> bool:
    every = int(getattr(trainer, "log_every_n_steps", 50) or 0)
    if bool(getattr(trainer, "should_stop", False)):
        return True
    return every > 0 and (_stepped(trainer) + 1 + steps) % every == 0
