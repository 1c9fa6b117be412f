"""Hugging Face Transformers: ``Trainer(..., callbacks=[GpurunCallback()])``.

Marks steps and epochs, tags ``train`` and, inside it, ``validate``, and passes what the trainer logs on to gpurun's log.
A no-op outside gpurun; never raises into the trainer.

Outside training the trainer tells a callback nothing before the first batch is done, so tag the call itself::

    with gpurun.tag("predict"):
        trainer.predict(dataset)
"""

from typing import Any, Dict, Optional

from ._client import client
from ._steps import Progress

try:
    from transformers import TrainerCallback as _Callback
except Exception:  # noqa: BLE001 - absent, or broken in whatever way
    _Callback = object  # type: ignore[assignment,misc]


class GpurunCallback(_Callback):  # type: ignore[misc,valid-type]
    """Tells gpurun about a Transformers ``Trainer``.

    :param log: whether the trainer's scalars (loss, learning rate, ...) go into gpurun's log too, under their
        own names and with the trainer's step.
    """

    def __init__(self, log: bool = True) -> None:
        super().__init__()
        self._log = log
        self._progress = Progress()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        client.connect()
        self._progress.begin("train")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_of_evaluation()
        # The epochs so far, as a fraction that may be off by a rounding error.
        self._progress.epoch(round(getattr(state, "epoch", None) or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Another callback may have called the evaluation off.
        self._end_of_evaluation()
        self._progress.step_begins(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.step_ends(state.global_step)
        self._begin_of_evaluation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin_of_evaluation(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_of_evaluation()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **kwargs: Any
    ) -> None:
        if self._log and logs and getattr(state, "is_world_process_zero", True):
            numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
            client.log(numbers, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.end_all()

    def _begin_of_evaluation(self, control: Any) -> None:
        """The trainer evaluates next, before any other hook that says so."""
        if getattr(control, "should_evaluate", False):
            self._progress.begin("validate")

    def _end_of_evaluation(self) -> None:
        self._progress.end("validate")
