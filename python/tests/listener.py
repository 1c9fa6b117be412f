"""A listener on a Unix socket that records what a client says and answers requests."""

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time

#: Only bounds how long a broken client can hang a test; nothing is measured.
PATIENCE = 60


class Listener:
    """Accepts any number of clients; every line lands in ``messages`` with its connection's number."""

    def __init__(self, answer=None, reads=True):
        self.directory = tempfile.mkdtemp()
        self.path = os.path.join(self.directory, "s")
        self.answer = answer or (lambda message: None)
        self.reads = reads
        self.messages = []
        self.ended = []
        self.connections = []
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            number = len(self.connections)
            with self._changed:
                self.connections.append(connection)
                self._changed.notify_all()
            if self.reads:
                threading.Thread(target=self.read, args=(number,), daemon=True).start()

    def read(self, number):
        """Reads one connection until its end."""
        connection = self.connections[number]
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    # First recorded, then answered: a client that has the answer finds the message here.
                    with self._changed:
                        self.messages.append((number, message))
                        self._changed.notify_all()
                    reply = self.answer(message)
                    if isinstance(reply, bytes):
                        connection.sendall(reply)
                    elif reply is not None:
                        text = json.dumps({"id": message.get("id"), "ok": True, "result": reply})
                        connection.sendall(text.encode() + b"\n")
        except (OSError, ValueError):
            pass
        with self._changed:
            self.ended.append(number)
            self._changed.notify_all()

    def until(self, condition):
        """Waits for something to become true of this listener."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), PATIENCE):
                raise AssertionError(f"it never came; {len(self.messages)} messages: {self.messages[-5:]}")

    def of(self, *ops):
        """The messages with one of these operations, in order."""
        return [message for _, message in self.messages if message["op"] in ops]

    def close(self):
        """Gone, as a killed gpurun is."""
        for connection in [self._socket, *self.connections]:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def fresh(path, **environment):
    """The package as a new process would import it, with this socket (``None``: outside gpurun)."""
    for variable in [name for name in os.environ if "RANK" in name or name.startswith(("SLURM_", "GPURUN_SOCKET"))]:
        del os.environ[variable]
    if path is not None:
        os.environ["GPURUN_SOCKET"] = path
    os.environ.update(environment)
    for name in [name for name in sys.modules if name == "gpurun" or name.startswith("gpurun.")]:
        del sys.modules[name]
    import gpurun

    return gpurun


def eventually(condition):
    """Waits for a condition that has no event."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it never came")
        time.sleep(0.001)
