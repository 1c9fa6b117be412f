"""The connection to gpurun: sends without blocking, loses quietly, never raises.

Everything a training loop calls ends up here, so three rules hold for every method of
:class:`Client`: it never waits for gpurun unless it was asked for an answer (and then only for the
given time), it never raises, and outside gpurun it costs next to nothing.
"""

import atexit
import json
import logging
import operator
import os
import select
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional

logger = logging.getLogger("gpurun")

SOCKET_VARIABLE = "GPURUN_SOCKET"
PROTOCOL_VERSION = 1

#: Longest line gpurun reads, in bytes, newline included.
MAX_LINE = 64 * 1024

#: Longest name of a tag or scalar, in bytes.
MAX_NAME = 128

#: Bytes that may wait in this process while gpurun does not read; for the ends of tags there is as much again.
MAX_REST = 4 * 1024 * 1024

#: Seconds that the end of the interpreter waits for a gpurun that reads nothing, and for one that reads slowly.
LAST_PATIENCE, LAST_TIMEOUT = 0.5, 5.0

#: Requests that may stay unanswered before new ones are given up at once.
MAX_UNANSWERED = 4

#: Bytes that the kernel may hold for gpurun. It doubles the number, and a short message takes about 800 bytes.
SEND_BUFFER = 212_992

#: Names that are kept in the form in which they are sent.
MAX_NAMES = 16_384

#: Longest single wait in seconds: ``poll`` takes no infinite or huge number.
LONGEST_WAIT = 24 * 3600.0

#: Seconds that connecting may take.
CONNECT_TIMEOUT = 0.5

#: Variables that name a process's rank, the most specific first: the same list as gpurun's own (``model::rank``).
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")

#: Variables that number the processes of one node.
LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")

_NEW, _ACTIVE, _INACTIVE = 0, 1, 2

_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


def is_name(name: object) -> bool:
    """Whether a scalar may have this name: no control characters, 1 to 128 bytes."""
    try:
        return (
            isinstance(name, str)
            and 0 < len(name.encode("utf-8")) <= MAX_NAME
            and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name)
        )
    except UnicodeError:
        return False


def is_tag(name: object) -> bool:
    """Whether a tag may have this name: one level, no control characters, 1 to 128 bytes."""
    return is_name(name) and "/" not in name  # type: ignore[operator]


def as_number(number: Any, what: str = "a step's number", least: int = -(2**63)) -> int:
    """A number as the protocol has it.

    :raises ValueError: it is no integer, less than ``least``, or needs more than 64 bits.
    """
    try:
        value = operator.index(number)
    except TypeError:
        value = None
    if value is None or not least <= value < 2**63:
        raise ValueError(f"{what} must be an integer of 64 bits, not {number!r}")
    return value


def _natural(variable: str) -> Optional[int]:
    try:
        number = int(os.environ.get(variable, ""))
    except ValueError:
        return None
    return number if 0 <= number < 2**31 else None


def rank_of_environment() -> Optional[int]:
    """The rank that a launcher such as torchrun gave this process, if any."""
    for variable in RANK_VARIABLES:
        # Outside a step of several tasks it is that of a batch script, always 0.
        if variable == "SLURM_PROCID" and (_natural("SLURM_STEP_NUM_TASKS") or 1) < 2:
            continue
        rank = _natural(variable)
        if rank is not None:
            return rank
    return None


def first_of_node() -> bool:
    """Whether this is the process of its node that speaks to the user; every one is, where none is numbered."""
    numbers = (_natural(variable) for variable in LOCAL_RANK_VARIABLES)
    return next((number for number in numbers if number is not None), 0) == 0


def wait_for(link: socket.socket, events: int, seconds: float) -> None:
    """Waits until the socket is ready for these events of ``poll``, at least a millisecond and at most so long."""
    waiting = select.poll()
    waiting.register(link, events)
    waiting.poll(max(1, int(min(seconds, LONGEST_WAIT) * 1000)))


class Client:
    """One process's connection. Thread-safe; a forked child starts without one."""

    def __init__(self) -> None:
        self._state = _NEW
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._last)

    def _reset(self) -> None:
        self._socket: Optional[socket.socket] = None
        # Re-entrant: a signal handler or a finaliser may mark something while a mark is being sent.
        self._sending = threading.RLock()
        self._reading = threading.RLock()
        self._rest = bytearray()
        self._flusher: Optional[threading.Thread] = None
        self._received = b""
        self._answers: Dict[int, Dict[str, Any]] = {}
        self._unanswered: List[int] = []
        self._next = 0
        self._last_step = 0
        self._current_step = 0
        self._warned: set = set()
        self._names: Dict[Any, bytes] = {}
        #: Messages that were not sent because gpurun did not read fast enough.
        self.dropped = 0
        # Those of them that have not been reported to gpurun.
        self._unreported = 0

    def _after_fork(self) -> None:
        # The child must not speak for its parent, nor keep the parent's connection open: gpurun
        # closes the parent's tags when the last copy of the socket is closed.
        mine, self._state = self._socket, _INACTIVE
        self._reset()
        if mine is not None:
            try:
                mine.close()
            except OSError:
                pass

    # -- being connected -----------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether a gpurun is listening to this process."""
        return self._state == _ACTIVE or (self._state == _NEW and self._connect())

    def connect(self) -> bool:
        """Connects if there is a gpurun and no connection, also in a forked child."""
        if self._state == _INACTIVE and self._socket is None:
            self._state = _NEW
        return self.active

    def _connect(self) -> bool:
        try:
            with self._sending:
                if self._state != _NEW:
                    return self._state == _ACTIVE
                path = os.environ.get(SOCKET_VARIABLE)
                if not path or not hasattr(socket, "AF_UNIX"):
                    self._state = _INACTIVE
                    return False
                link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    link.settimeout(CONNECT_TIMEOUT)
                    link.connect(path)
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
                    link.setblocking(False)
                except BaseException:
                    link.close()
                    raise
                self._socket = link
                self._state = _ACTIVE
                hello: Dict[str, Any] = {"op": "hello", "version": PROTOCOL_VERSION, "pid": os.getpid()}
                rank = rank_of_environment()
                if rank is not None:
                    hello["rank"] = rank
                self.send(json.dumps(hello).encode() + b"\n", must=True)
                return self._state == _ACTIVE
        except Exception as error:  # noqa: BLE001 - nothing here may reach the training loop
            self._state = _INACTIVE
            logger.debug("no gpurun: %s", error)
            return False

    def _lose(self) -> None:
        """gpurun is gone: be a no-op from now on."""
        link, self._socket = self._socket, None
        self._state = _INACTIVE
        self._rest = bytearray()
        if link is not None:
            try:
                link.close()
            except OSError:
                pass

    def warn_once(self, key: str, message: str, *args: object) -> None:
        """Tells the user once, through the ``gpurun`` logger, in one process of each node."""
        if key not in self._warned:
            self._warned.add(key)
            logger.log(logging.WARNING if first_of_node() else logging.DEBUG, message, *args)

    # -- sending -------------------------------------------------------------------------------

    def send(self, line: bytes, must: bool = False) -> bool:
        """Sends one whole line without blocking; says whether it is (or will be) on its way.

        While gpurun does not read, lines are kept here for a while, then dropped and counted; for those that
        ``must`` arrive (the ends of tags) there is more room.
        """
        try:
            with self._sending:
                link = self._socket
                if link is None:
                    return False
                if self._rest:
                    self._flush()
                    if self._rest:
                        return self._keep(line, must)
                try:
                    sent = link.send(line, _NOSIGNAL)
                except BlockingIOError:
                    return self._keep(line, must)
                if sent < len(line):
                    self._rest += line[sent:]
                    self._flush_later()
                return True
        except OSError:
            self._lose()
        except Exception as error:  # noqa: BLE001
            logger.debug("a message was not sent: %s", error)
        return False

    def _flush(self) -> int:
        """Sends what the socket takes of what is kept; says how many bytes that was."""
        link = self._socket
        if link is None:
            return 0
        if self._unreported and len(self._rest) < MAX_REST:
            self._rest += b'{"op":"dropped","dropped":%d}\n' % self._unreported
            self._unreported = 0
        try:
            sent = link.send(self._rest, _NOSIGNAL)
        except BlockingIOError:
            return 0
        del self._rest[:sent]
        return sent

    def _keep(self, line: bytes, must: bool) -> bool:
        if len(self._rest) + len(line) <= (2 * MAX_REST if must else MAX_REST):
            self._rest += line
            self._flush_later()
            return True
        self.dropped += 1
        self._unreported += 1
        return False

    def _flush_later(self) -> None:
        """What is kept goes out as soon as gpurun reads, though the loop may say nothing more for a long time."""
        if self._flusher is None:
            flusher = threading.Thread(target=self._drain, name="gpurun-flush", daemon=True)
            flusher.start()
            self._flusher = flusher

    def _drain(self) -> None:
        while True:
            link = self._socket
            try:
                if link is not None:
                    wait_for(link, select.POLLOUT, 1.0)
                with self._sending:
                    if link is self._socket:
                        self._flush()
                    if self._socket is None or not self._rest:
                        self._flusher = None
                        return
            except Exception:  # noqa: BLE001 - the socket was closed meanwhile, or breaks now
                with self._sending:
                    self._flusher = None
                    if link is self._socket:
                        self._lose()
                return

    def _last(self) -> None:
        """The interpreter ends: what is kept has one more chance, as long as gpurun reads."""
        deadline = time.monotonic() + LAST_TIMEOUT
        try:
            link, sent = self._socket, 1
            while link is not None and self._rest and sent > 0 and time.monotonic() < deadline:
                wait_for(link, select.POLLOUT, LAST_PATIENCE)
                with self._sending:
                    sent = self._flush()
                link = self._socket
        except Exception as error:  # noqa: BLE001
            logger.debug("the last messages were not sent: %s", error)

    # -- marks ---------------------------------------------------------------------------------

    def begin(self, tag: str) -> Optional[int]:
        """Begins a tag; gives the number that ends exactly this one."""
        if self._state != _ACTIVE and not self.active:
            return None
        try:
            name = self._names.get(tag) or self._tag(tag)
            if not name:
                return None
            with self._sending:
                self._next += 1
                span = self._next
            line = b'{"op":"begin","tag":%s,"span":%d,"t":%d}\n' % (name, span, time.monotonic_ns())
            return span if self.send(line) else None
        except Exception as error:  # noqa: BLE001 - a list, which no dictionary takes as a key
            self.warn_once("tag", "gpurun.tag ignores a name: %s", error)
            return None

    def _tag(self, tag: object) -> Optional[bytes]:
        if not is_tag(tag):
            self.warn_once(f"tag {tag!r}", "%r cannot be a tag; it is ignored", tag)
            return None
        return self._name(str(tag))

    def _name(self, name: str) -> bytes:
        """A name as JSON; made once, as the same few names come with every step."""
        known = self._names.get(name)
        if known is None:
            known = json.dumps(name).encode()
            if len(self._names) < MAX_NAMES:
                self._names[name] = known
        return known

    def end(self, span: Optional[int]) -> None:
        """Ends the tag that :meth:`begin` gave the number of, and every tag begun inside it."""
        if span is None or self._state != _ACTIVE:
            return
        self.send(b'{"op":"end","span":%d,"t":%d}\n' % (span, time.monotonic_ns()), must=True)

    def clear(self, tag: Optional[str]) -> None:
        """Starts the statistics of an open tag again."""
        if not self.active:
            return
        try:
            message: Dict[str, Any] = {"op": "clear", "t": time.monotonic_ns()}
            if tag is not None:
                message["tag"] = tag
            self.send(json.dumps(message).encode() + b"\n")
        except Exception as error:  # noqa: BLE001
            logger.debug("a tag was not cleared: %s", error)

    def epoch(self, number: Optional[int] = None) -> None:
        """An epoch begins."""
        if self._state != _ACTIVE and not self.active:
            return
        line = b'{"op":"epoch","t":%d' % time.monotonic_ns()
        try:
            if number is not None:
                line += b',"epoch":%d' % as_number(number, "an epoch's number")
        except Exception as error:  # noqa: BLE001 - whatever its `__index__` raises
            self.warn_once("epoch", "gpurun.epoch leaves the number out: %s", error)
        self.send(line + b"}\n")

    def step_begins(self, step: Optional[int], at: int) -> None:
        """Marks the start of a step at ``at``, in nanoseconds of ``CLOCK_MONOTONIC``."""
        if self._state != _ACTIVE and not self.active:
            return
        try:
            number = self._last_step + 1 if step is None else as_number(step)
        except Exception:  # noqa: BLE001 - its end says what is wrong
            return
        # What is logged now is of this step.
        self._current_step = number
        self.send(b'{"op":"step_begin","step":%d,"t":%d}\n' % (number, at))

    def step(
        self,
        step: Optional[int],
        at: int,
        began: Optional[int],
        count: int = 1,
        samples: Optional[int] = None,
    ) -> None:
        """Marks the end of ``count`` steps, ``step`` the last, at ``at``, in nanoseconds of ``CLOCK_MONOTONIC``."""
        if self._state != _ACTIVE and not self.active:
            return
        try:
            number = self._last_step + 1 if step is None else as_number(step)
        except Exception as error:  # noqa: BLE001 - whatever its `__index__` raises
            self.warn_once("step", "gpurun.step ignores a step: %s", error)
            return
        self._last_step = self._current_step = number
        line = b'{"op":"step","step":%d,"t":%d' % (number, at)
        if began is not None:
            line += b',"began":%d' % began
        if count > 1:
            line += b',"steps":%d' % count
        try:
            if samples is not None:
                line += b',"samples":%d' % as_number(samples, "the number of samples", 0)
        except Exception as error:  # noqa: BLE001
            self.warn_once("samples", "gpurun.step leaves the samples out: %s", error)
        self.send(line + b"}\n")

    def log(self, values: Mapping[str, Any], step: Optional[int] = None, every: int = 1) -> None:
        """Sends scalars; one that is not finite goes as null."""
        if self._state != _ACTIVE and not self.active:
            return
        now = time.monotonic_ns()
        head = b'{"op":"log","t":%d' % now
        try:
            if step is not None:
                step = as_number(step)
                head += b',"step":%d' % step
        except Exception as error:  # noqa: BLE001 - whatever its `__index__` raises
            self.warn_once("log step", "gpurun.log leaves the step out: %s", error)
            step = None
        try:
            if every > 1 and (self._current_step if step is None else step) % every:
                return
            line, end = head + b',"values":{', b"}}\n"
            comma, room = b"", MAX_LINE - len(line) - len(end)
            body = b""
            for pair in self._pairs(values):
                if len(body) + 1 + len(pair) > room:
                    self.send(line + body + end)
                    body, comma = b"", b""
                body += comma + pair
                comma = b","
            if body:
                self.send(line + body + end)
        except Exception as error:  # noqa: BLE001
            self.warn_once("log", "gpurun.log takes names with numbers: %s", error)

    def _pairs(self, values: Mapping[str, Any]) -> Iterator[bytes]:
        """``"name":number`` of each scalar that has both."""
        for name, value in values.items():
            try:
                number = float(value)
            except Exception:  # noqa: BLE001 - a tensor may raise whatever it likes
                self.warn_once("log value", "gpurun.log leaves %r out: its value is not a number", name)
                continue
            known = self._names.get(name)
            if known is None:
                try:
                    text = str(name)
                except Exception:  # noqa: BLE001 - whatever its `__str__` raises
                    text = ""
                if not is_name(text):
                    self.warn_once("log name", "gpurun.log leaves %.140r out: it cannot be a name", text)
                    continue
                known = self._name(text)
            # Neither NaN nor an infinity.
            finite = number - number == 0.0
            yield b"%s:%s" % (known, repr(number).encode() if finite else b"null")

    # -- requests ------------------------------------------------------------------------------

    def request(self, op: str, **fields: Any) -> Optional[int]:
        """Asks without waiting; the answer is for :meth:`take` or :meth:`wait`."""
        if not self.active:
            return None
        try:
            with self._reading:
                if len(self._unanswered) >= MAX_UNANSWERED:
                    self._receive(0.0)
                    if len(self._unanswered) >= MAX_UNANSWERED:
                        return None
                with self._sending:
                    self._next += 1
                    number = self._next
                message = dict(fields, op=op, id=number, t=time.monotonic_ns())
                if not self.send(json.dumps(message).encode() + b"\n"):
                    return None
                self._unanswered.append(number)
                return number
        except Exception as error:  # noqa: BLE001
            logger.debug("a request was not sent: %s", error)
            return None

    def take(self, number: Optional[int]) -> Optional[Dict[str, Any]]:
        """The answer if it has come, without waiting."""
        return self.wait(number, 0.0)

    def wait(self, number: Optional[int], timeout: float) -> Optional[Dict[str, Any]]:
        """The answer if it comes within ``timeout`` seconds; refused and lost ones are ``None``."""
        if number is None:
            return None
        try:
            with self._reading:
                deadline = time.monotonic() + max(0.0, timeout)
                while True:
                    if number in self._answers:
                        reply = self._answers.pop(number)
                        return reply.get("result") if reply.get("ok") else None
                    left = deadline - time.monotonic()
                    if number not in self._unanswered or not self._receive(max(0.0, left)):
                        reply = self._answers.pop(number, {})
                        return reply.get("result") if reply.get("ok") else None
        except Exception as error:  # noqa: BLE001
            logger.debug("an answer was not read: %s", error)
            return None

    def _receive(self, timeout: float) -> bool:
        """Reads what has come, waiting at most ``timeout`` seconds for the first of it."""
        link = self._socket
        if link is None:
            return False
        try:
            if timeout > 0:
                wait_for(link, select.POLLIN, timeout)
            got = link.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, ValueError):
            self._lose()
            return False
        if not got:
            self._lose()
            return False
        self._received += got
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            reply = json.loads(line)
            number = reply.get("id")
            if number in self._unanswered:
                self._unanswered.remove(number)
                self._answers[number] = reply
        # Answers whose caller gave up must not pile up.
        while len(self._answers) > 2 * MAX_UNANSWERED:
            self._answers.pop(next(iter(self._answers)))
        return True

    def ask(self, op: str, timeout: float, **fields: Any) -> Optional[Dict[str, Any]]:
        """Asks and waits at most ``timeout`` seconds."""
        return self.wait(self.request(op, **fields), timeout)


client = Client()
