"""What the Python package costs a training loop, in microseconds a call.

    gpurun -q -- python benches/python_cost.py          inside gpurun
    python benches/python_cost.py                       outside: the price of the no-ops

With ``--monitor`` (inside a gpurun that has chosen GPUs) also: one logged step of ``GPUStatsMonitor``, against
the approach of the older callbacks, two processes spawned a logged step. The spawned program here is ``echo``,
which prints one line and does nothing else; a real nvidia-smi takes longer.

Medians over bursts; between bursts the loop pauses, as one that trains does, so that gpurun can read.
"""

import os
import statistics
import subprocess
import sys
import time
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import gpurun  # noqa: E402

BURSTS, CALLS, PAUSE = 40, 100, 0.03


def median_us(call):
    """Microseconds of one call: the median over bursts of the mean within a burst."""
    times = []
    for _ in range(BURSTS):
        start = time.perf_counter_ns()
        for n in range(CALLS):
            call(n)
        times.append((time.perf_counter_ns() - start) / CALLS / 1000)
        time.sleep(PAUSE)
    times.sort()
    return statistics.median(times), times[len(times) * 9 // 10]


def in_tag(n):
    with gpurun.tag("batch"):
        pass


def in_step(n):
    with gpurun.step(n):
        pass


def calls():
    """The table of calls."""
    table = [
        ("step(n)", gpurun.step),
        ("with step(n)", in_step),
        ("with tag(name): begin and end", in_tag),
        ("log({one scalar})", lambda n: gpurun.log({"loss": 0.25}, step=n)),
    ]
    print(f"active: {gpurun.is_active()}")
    for name, call in table:
        median, tail = median_us(call)
        print(f"{name:32} {median:8.2f} us   (90 % of bursts below {tail:.2f})")
    print(f"dropped: {gpurun.dropped()}")
    if gpurun.is_active():
        for name, call in (("snapshot()", gpurun.snapshot), ("collect()", gpurun.collect)):
            times = []
            for _ in range(200):
                start = time.perf_counter_ns()
                answer = call()
                times.append((time.perf_counter_ns() - start) / 1000)
                assert answer
                time.sleep(0.001)
            print(f"{name:32} {statistics.median(times):8.1f} us   waits for the answer")


class Logger:
    """Takes values and keeps none."""

    def log_metrics(self, metrics, step):
        self.last = metrics


def work(seconds):
    """Keeps the CPU busy, as a loop that feeds a GPU does; after a sleep every cache is cold."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))


def monitor():
    """One logged step of the callback, hooks only, in a loop that works 2 ms inside and between its steps."""
    from gpurun.lightning import GPUStatsMonitor

    logger = Logger()
    trainer = SimpleNamespace(
        logger=logger,
        log_every_n_steps=1,
        device_ids=[0],
        is_global_zero=True,
        global_step=0,
        should_stop=False,
        _logger_connector=SimpleNamespace(should_update_logs=True),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0)),
    )
    callback = GPUStatsMonitor(intra_step_time=True, inter_step_time=True)
    callback.setup(trainer, None, "fit")
    callback.on_train_start(trainer, None)
    callback.on_train_epoch_start(trainer, None)
    ours = []
    for batch in range(300):
        start = time.perf_counter_ns()
        callback.on_train_batch_start(trainer, None, None, batch)
        middle = time.perf_counter_ns()
        work(0.002)
        trainer.global_step += 1
        again = time.perf_counter_ns()
        callback.on_train_batch_end(trainer, None, None, None, batch)
        ours.append((middle - start + time.perf_counter_ns() - again) / 1000)
        trainer.fit_loop.epoch_loop._batches_that_stepped += 1
        work(0.002)
    callback.on_train_end(trainer, None)
    echo = "/bin/echo"
    theirs = []
    for _ in range(100):
        work(0.004)
        start = time.perf_counter_ns()
        for _ in range(2):
            result = subprocess.run(
                [echo, "97, 40000, 41920, 55"], encoding="utf-8", capture_output=True, check=True
            )
            [float(x) for x in result.stdout.strip().split(", ")]
        theirs.append((time.perf_counter_ns() - start) / 1000)
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    print(f"GPUStatsMonitor, a logged step   {ours:8.1f} us   {sorted(logger.last)}")
    print(f"two spawned processes            {theirs:8.1f} us   ratio {theirs / ours:.0f}")


if __name__ == "__main__":
    if "--monitor" in sys.argv:
        monitor()
    else:
        calls()
