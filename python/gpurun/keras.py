"""Keras: ``model.fit(..., callbacks=[GpurunCallback()])``, and the same for ``evaluate`` and ``predict``.

Marks steps and epochs, tags ``train``, ``validate`` (the evaluation inside ``fit``), ``test`` (``evaluate``) and
``predict``, and passes what Keras logs at the end of an epoch on to gpurun's log. A no-op outside gpurun; never raises
into ``fit``.
"""

import sys
from typing import Any, Dict, Optional

from ._client import client
from ._steps import Progress


def _base() -> type:
    """``Callback`` of whichever Keras the program uses."""
    import importlib

    names = ["keras.callbacks", "tensorflow.keras.callbacks", "tf_keras.callbacks"]
    names.sort(key=lambda name: name.rpartition(".")[0] not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(name).Callback
        except Exception:  # noqa: BLE001 - absent, or broken in whatever way
            continue
    return object


_Callback = _base()


class GpurunCallback(_Callback):  # type: ignore[misc,valid-type]
    """Tells gpurun about a Keras model; the step is the number of training batches so far.

    With ``steps_per_execution=k`` Keras tells of ``k`` batches at once: each of them has a ``k``-th of their time.

    :param log: whether the epoch's scalars (loss, metrics, ``val_`` ones) go into gpurun's log too.
    """

    def __init__(self, log: bool = True) -> None:
        super().__init__()
        self._log = log
        self._progress = Progress()
        self._step = 0
        self._before_epoch = 0

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        client.connect()
        self._progress.begin("train")

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._before_epoch = self._step
        self._progress.epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._progress.step_begins(self._step + 1)

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        first = self._step + 1
        # `batch` counts from 0 in each epoch, and is the last one of those that ran together.
        self._step = max(first, self._before_epoch + batch + 1)
        self._progress.steps_end(first, self._step)

    def on_test_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        client.connect()
        self._progress.begin("validate" if self._progress.has("train") else "test")

    def on_test_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._progress.end("validate")
        self._progress.end("test")

    def on_predict_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        client.connect()
        self._progress.begin("predict")

    def on_predict_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._progress.end("predict")

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self._log and logs:
            client.log(logs, self._step)

    def on_train_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._progress.end_all()
