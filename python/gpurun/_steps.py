"""What the callbacks share: open tags by name, and the start of the step that is running.

All of them tag ``train``, ``validate``, ``test`` and ``predict``, whatever their framework calls it.
"""

import time
from typing import Dict, Optional

from ._client import client


class Progress:
    """Tags and steps of one trainer, for hooks that come in pairs but may lose their second half."""

    def __init__(self) -> None:
        self._open: Dict[str, Optional[int]] = {}
        self._began: Optional[int] = None

    # A callback may be pickled to its workers, or deep-copied with a configuration; the numbers of
    # open tags belong to this process.
    def __getstate__(self) -> dict:
        return {}

    def __setstate__(self, state: dict) -> None:
        self.__init__()  # type: ignore[misc]

    def begin(self, tag: str) -> None:
        """Begins a tag unless this trainer already has it open."""
        if tag not in self._open:
            self._open[tag] = client.begin(tag)

    def has(self, tag: str) -> bool:
        """Whether this trainer has a tag open."""
        return tag in self._open

    def end(self, tag: str) -> None:
        """Ends a tag if this trainer has it open."""
        if tag in self._open:
            client.end(self._open.pop(tag))

    def end_all(self) -> None:
        """Ends every tag of this trainer."""
        while self._open:
            client.end(self._open.popitem()[1])
        self._began = None

    def epoch(self, number: Optional[int] = None) -> None:
        """An epoch begins."""
        self._began = None
        client.epoch(number)

    def step_begins(self, step: int) -> None:
        """A batch begins; of several batches in one optimiser step the first one counts."""
        if self._began is None:
            self._began = time.monotonic_ns()
            client.step_begins(step, self._began)

    def step_ends(self, step: int) -> None:
        """An optimiser step ends."""
        self.steps_end(step, step)

    def steps_end(self, first: int, last: int) -> None:
        """Steps end that ran as one; each has an equal part of their time."""
        client.step(last, time.monotonic_ns(), self._began, last - first + 1)
        self._began = None
