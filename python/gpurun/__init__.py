"""Tells gpurun about epochs, steps and phases of a training job, from inside the job.

Start the job with ``gpurun --log metrics.parquet -- python train.py``; in ``train.py``::

    import gpurun

    with gpurun.tag("train"):
        for n, batch in enumerate(loader):
            with gpurun.step(n):
                loss = train(batch)
            gpurun.log(loss=loss, step=n)

The log then has rows for exactly the span of each tag and of each group of steps. Outside gpurun every
function is a silent no-op; nothing here ever raises into, or waits inside, the training loop (only
:func:`collect` and :func:`snapshot` wait, for at most their ``timeout``).

Needs only the standard library.
"""

import functools
import inspect
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from ._client import client as _client

__all__ = [
    "clear",
    "collect",
    "connect",
    "dropped",
    "epoch",
    "is_active",
    "log",
    "snapshot",
    "step",
    "tag",
]

__version__ = "0.1.0"

_F = TypeVar("_F", bound=Callable[..., Any])


def is_active() -> bool:
    """Whether this process runs under gpurun and gpurun is listening."""
    return _client.active


def connect() -> bool:
    """Speak for this process; says whether a gpurun listens.

    Only needed in a forked child that trains (``multiprocessing`` with the ``fork`` method): a forked
    process is silent by default, so that a data loader's workers do not speak for their parent.
    """
    return _client.connect()


def dropped() -> int:
    """How many messages were dropped because gpurun did not read them fast enough. gpurun counts them too."""
    return _client.dropped


class tag:  # noqa: N801 - reads as a statement: ``with gpurun.tag("train"):``
    """Names a phase: ``with gpurun.tag("train"):`` or ``@gpurun.tag("evaluate")``.

    Tags nest: ``train``, then ``train/batch``. Leaving one, by an exception too, ends those inside.
    The log gets one set of rows for exactly the span. A tag that is already open in this process is not
    opened twice: the inner use is a no-op. A name that cannot be a tag is ignored, and said once.

    :param name: one level: not empty, without ``/`` and control characters, at most 128 bytes.
    """

    __slots__ = ("_name", "_spans")

    def __init__(self, name: str) -> None:
        self._name = name
        self._spans: List[Optional[int]] = []

    def __enter__(self) -> "tag":
        self._spans.append(_client.begin(self._name))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._spans:
            _client.end(self._spans.pop())

    def __call__(self, function: _F) -> _F:
        name = self._name
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with tag(name):
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with tag(name):
                    return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with tag(name):
                    return function(*args, **kwargs)

        return wrapper


class step:  # noqa: N801 - reads as a statement
    """Marks a training step, in one of two ways.

    ``with gpurun.step(n):`` around the work marks both ends, which gives ``intra_step (ms)`` (start to end) and
    ``inter_step (ms)`` (end to the next start). ``gpurun.step(n)`` as a statement of its own says that step ``n`` ends
    now. Its time is counted from the mark before it in the same tag and epoch; the first one there has none.

    A tag that opens inside ``with gpurun.step(n)`` is a part of that step. One that opens between two marks or two steps
    (evaluation, checkpoint) is in the time of neither, unless it opens there in every step.

    A step that is marked twice with the same number in one tag, for instance here and by a callback, counts once.

    :param n: the step's number, an integer; left out, one more than the last one. Anything else is ignored, and said
        once.
    :param samples: how many training samples the step takes; gives ``throughput (samples/s)``.
    :param first_of_epoch: an epoch begins with this step (see :func:`epoch`).
    """

    # A statement drops the object at once, and that is when the mark is sent, with the instant of the
    # call; `with` takes it over before.
    __slots__ = ("_n", "_at", "_samples", "_state")

    def __init__(
        self, n: Optional[int] = None, *, samples: Optional[int] = None, first_of_epoch: bool = False
    ) -> None:
        self._state = 0
        try:
            if first_of_epoch:
                _client.epoch()
        except Exception:  # noqa: BLE001 - an array is neither true nor false
            if _client.active:
                _client.warn_once("first", "gpurun.step takes True or False for first_of_epoch")
        self._at = time.monotonic_ns()
        self._n = n
        self._samples = samples

    def __enter__(self) -> "step":
        self._state = 1
        self._at = time.monotonic_ns()
        _client.step_begins(self._n, self._at)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        # A step that raised did not end; it is not marked.
        if kind is None:
            _client.step(self._n, time.monotonic_ns(), self._at, samples=self._samples)

    def __del__(self) -> None:
        if self._state == 0:
            try:
                _client.step(self._n, self._at, None, samples=self._samples)
            except Exception:  # noqa: BLE001 - the interpreter may be shutting down
                pass


def epoch(n: Optional[int] = None) -> None:
    """Says that an epoch begins, number ``n``: ``gpurun.epoch(n)`` at the top of the loop over epochs.

    Rows from here on have ``n`` in their column ``epoch``. The steps before it have rows of their own, and no time
    between steps is counted across it.

    :param n: the epoch's number, an integer; left out, the column keeps what it had.
    """
    _client.epoch(n)


def log(
    values: Optional[Mapping[str, Any]] = None,
    step: Optional[int] = None,
    every: int = 1,
    **scalars: Any,
) -> None:
    """Puts scalars of the job's own into gpurun's log (scope ``user``): ``gpurun.log(loss=loss, step=n)``.

    A value that is not finite is recorded as missing, so that a diverged run can be seen. One that is not a number is
    left out, and said once. ``values``, ``step`` and ``every`` can be names of scalars in the dictionary only.

    Reading a CUDA tensor waits until the GPU has computed it, which slows a loop that does so in every step. Pass
    ``every`` with the tensor itself, and it is read in every ``every``-th step only.

    :param values: names (at most 128 bytes) and numbers, or anything that ``float()`` takes.
    :param step: the training step that they belong to.
    :param every: only steps whose number can be divided by this are logged; the values of others are not read. Without
        ``step``, the step that is running or was marked last decides.
    """
    if scalars or values is None:
        try:
            values = {**(values or {}), **scalars}
        except Exception:  # noqa: BLE001 - a mark never raises; `log` says what is wrong
            pass
    _client.log(values, step, every)  # type: ignore[arg-type]


def clear(tag: Optional[str] = None) -> None:
    """Starts the statistics of an open tag (``None``: of all) again for :func:`collect`."""
    _client.clear(tag)


def collect(timeout: float = 0.5) -> Dict[str, float]:
    """Statistics of the innermost open tag so far, with nvitop's keys.

    ``<tag>/<scope>/<metric (unit)>/<mean|min|max|last>``, for instance
    ``run/train/cuda:0 (gpu:3)/gpu_utilization (%)/mean``, and ``<tag>/duration (s)`` and
    ``<tag>/timestamp`` (seconds since the epoch). A value that is unknown is left out.

    :param timeout: seconds to wait for gpurun's answer.
    :returns: an empty dictionary outside gpurun, or when no answer came in time.
    """
    answer = _client.ask("collect", timeout)
    try:
        if not answer:
            return {}
        known = {key: value for key, value in answer["metrics"].items() if value is not None}
        known[f"{answer['tag']}/timestamp"] = time.time()
        return known
    except Exception:  # noqa: BLE001 - an answer of another version
        return {}


def snapshot(
    timeout: float = 0.5,
    parts: Union[None, str, Sequence[str]] = None,
    metrics: Union[None, str, Sequence[str]] = None,
) -> Dict[str, Any]:
    """The current window of the run: ``gpus``, ``host``, ``job``, ``gpurun`` and ``processes``.

    ``snapshot()["gpus"][0]["metrics"]["gpu_utilization (%)"]["mean"]``; each GPU has ``gpu`` (NVML index),
    ``cuda`` (ordinal in this job), ``uuid`` and ``name``. Unknown values are ``None``. Units are in the
    metrics' names; ``time`` is in seconds since the epoch.

    :param timeout: seconds to wait for gpurun's answer.
    :param parts: only these parts, for instance ``["gpus"]`` or ``"gpus"``. What is no list of names is ignored, and
        said once.
    :param metrics: only these metrics, for instance ``["gpu_utilization (%)"]``; as ``parts``.
    :returns: an empty dictionary outside gpurun, or when no answer came in time.
    """
    if not _client.active:
        return {}
    fields = {"parts": _names("parts", parts), "metrics": _names("metrics", metrics)}
    asked = {what: names for what, names in fields.items() if names is not None}
    return _client.ask("snapshot", timeout, **asked) or {}


def _names(what: str, names: Any) -> Optional[List[str]]:
    """The names as a list; ``None`` for what is none."""
    if names is None:
        return None
    try:
        several = [names] if isinstance(names, str) else list(names)
        if all(isinstance(name, str) for name in several):
            return several
    except Exception:  # noqa: BLE001 - no list; said below
        pass
    _client.warn_once(what, f"gpurun.snapshot ignores {what}: it takes a list of names")
    return None
