#!/usr/bin/env python3
"""Runs nvitop's collector and gpurun side by side on the same simulated GPUs and the same job.

    cargo build --workspace
    target/test-venv/bin/python benches/nvitop_side_by_side.py                 # the means, side by side
    target/test-venv/bin/python benches/nvitop_side_by_side.py --show windows  # one difference: see docs/nvitop-differences.md
    target/test-venv/bin/python benches/nvitop_side_by_side.py --show all

It ends with 1 where a mean differs that should be the same, or where a difference that the document lists does not show
any more. The Python must have nvitop (`tests/requirements.txt`; `tests/run` makes the environment).
"""

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SCENARIO = """
epoch_file = "{dir}/epoch"

[defaults]
name = "Side by side"
memory_total = 40960
memory_reserved = 512
memory_utilization = 25
temperature = {{ sine = {{ mean = 60, amplitude = 10, period = 2 }} }}
power = {{ sine = {{ mean = 250, amplitude = 50, period = 2 }} }}
power_limit = 400
fan_speed = 40

[[gpu]]
memory_used = 9000
gpu_utilization = {{ sine = {{ mean = 50, amplitude = 40, period = 2 }} }}
process = [{{ pid_file = "{dir}/pids" }}]

[[gpu]]
memory_used = 1000
gpu_utilization = 0
"""

# The job: one core half busy, 100 MiB, and it is the process on GPU 0.
JOB = """
import os, sys, time
held = bytearray(100 << 20)
for page in range(0, len(held), 4096):
    held[page] = 1
name = sys.argv[1] + "/pids"
with open(name + ".new", "w") as file:
    file.write(f"{os.getpid()} 3000 40")
os.rename(name + ".new", name)
print("up", flush=True)
while True:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    time.sleep(0.05)
"""

# nvitop's key (without tag and statistic), gpurun's row, and how far the means may be apart: a share of the larger one.
SAME = [
    ("gpu:0/gpu_utilization (%)", ("gpu", "gpu_utilization", "0"), 0.1),
    ("gpu:0/memory_utilization (%)", ("gpu", "memory_utilization", "0"), 0.001),
    ("gpu:0/memory_used (MiB)", ("gpu", "memory_used", "0"), 0.001),
    ("gpu:0/memory_free (MiB)", ("gpu", "memory_free", "0"), 0.001),
    ("gpu:0/memory_total (MiB)", ("gpu", "memory_total", "0"), 0.001),
    ("gpu:0/memory_percent (%)", ("gpu", "memory_percent", "0"), 0.01),
    ("gpu:0/temperature (C)", ("gpu", "temperature", "0"), 0.03),
    ("gpu:0/power_usage (W)", ("gpu", "power_usage", "0"), 0.03),
    ("gpu:0/power_limit (W)", ("gpu", "power_limit", "0"), 0.001),
    ("gpu:0/fan_speed (%)", ("gpu", "fan_speed", "0"), 0.001),
    ("gpu:1/gpu_utilization (%)", ("gpu", "gpu_utilization", "1"), 0.001),
    ("gpu:1/memory_used (MiB)", ("gpu", "memory_used", "1"), 0.001),
    ("host/memory_used (GiB)", ("host", "memory_used", ""), 0.25),
    ("host/load_average (%) (15 min)", ("host", "load_average_15m", ""), 0.1),
    ("pid:JOB/host/host_memory (MiB)", ("process", "memory_rss", ""), 0.02),
    ("pid:JOB/gpu:0/gpu_memory (MiB)", ("process", "gpu_memory", "0"), 0.001),
    ("pid:JOB/gpu:0/gpu_sm_utilization (%)", ("process", "gpu_sm_utilization", "0"), 0.02),
]


class Place:
    """A directory with the simulated driver's files, and the programs."""

    def __init__(self, args, directory):
        self.gpurun = args.gpurun
        self.directory = directory

    def start_job(self):
        job = subprocess.Popen([sys.executable, "-c", JOB, self.directory], stdout=subprocess.PIPE, text=True)
        said = job.stdout.readline()
        if said != "up\n":
            raise SystemExit(f"the job did not start: it said {said!r} and ended with {job.wait()}")
        return job

    def record(self, log, *options, window="1h"):
        """gpurun beside the collector; it has its first window's values from its start on."""
        command = [self.gpurun, "record", "-q", "--log", log, "--interval", "100ms", "--window", window, *options]
        return subprocess.Popen(command)

    def rows(self, log):
        with open(log, newline="") as file:
            return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


def until(holds, seconds=60.0):
    """Waits for a condition that has no event."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("timed out")
        time.sleep(0.01)


def collector(pids, interval=0.1):
    from nvitop import Device, ResourceMetricCollector

    return ResourceMetricCollector(devices=Device.all(), root_pids=pids, interval=interval)


def side_by_side(place, seconds):
    """The means of one job, by both, over the same time."""
    from nvitop import HostProcess

    job = place.start_job()
    log = f"{place.directory}/gpurun.csv"
    kept = HostProcess(job.pid)  # nvitop's collector loses its roots unless the caller keeps them
    kept.cpu_percent()
    gpurun = place.record(log, "--pid", str(job.pid))
    try:
        with collector({job.pid})(tag="run") as running:
            time.sleep(seconds)
            theirs = running.collect()
    finally:
        gpurun.send_signal(signal.SIGINT)
        gpurun.wait()
        job.kill()
        job.wait()
    ours = {(row["scope"], row["metric"], row["gpu"]): row for row in place.rows(log)}
    wrong = 0
    print(f"{'mean of ' + str(seconds) + ' s':44}{'nvitop':>12}{'gpurun':>12}")
    for key, row, tolerance in SAME:
        name = "run/" + key.replace("JOB", str(job.pid))
        one = theirs.get(f"{name}/mean")
        other = number(ours[row]["mean"]) if row in ours else None
        same = (
            one is not None
            and other is not None
            and abs(one - other) <= tolerance * max(abs(one), abs(other)) + 1e-9
        )
        wrong += not same
        shown = ["-" if value is None else f"{value:.3f}" for value in (one, other)]
        print(f"{key:44}{shown[0]:>12}{shown[1]:>12}{'' if same else '   DIFFERENT'}")
    del kept
    return wrong


# ---- where nvitop is wrong; each gives what nvitop says, what gpurun says, and whether the difference still shows


def show_pids(place):
    """Rows of the job's processes, where the caller does not keep nvitop's HostProcess object."""
    job = place.start_job()
    log = f"{place.directory}/pids.csv"
    gpurun = place.record(log, "--pid", str(job.pid))
    with collector({job.pid})(tag="run") as running:
        time.sleep(1.0)
        theirs = [key for key in running.collect() if "/pid:" in key]
    gpurun.send_signal(signal.SIGINT)
    gpurun.wait()
    job.kill()
    job.wait()
    ours = [row for row in place.rows(log) if row["scope"] == "process"]
    return f"{len(theirs)} keys of the job's process", f"{len(ours)} rows of it", not theirs and bool(ours)


def show_cpu(place):
    """The smallest CPU use of a host that is kept busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    log = f"{place.directory}/cpu.csv"
    time.sleep(0.5)
    gpurun = place.record(log)
    with collector(set())(tag="run") as running:
        time.sleep(1.5)
        theirs = running.collect()["run/host/cpu_percent (%)/min"]
    gpurun.send_signal(signal.SIGINT)
    gpurun.wait()
    for process in busy:
        process.kill()
        process.wait()
    rows = [row for row in place.rows(log) if (row["scope"], row["metric"]) == ("host", "cpu_percent")]
    ours = number(rows[0]["min"])
    return f"min {theirs:.1f} %", f"min {ours:.1f} %", theirs == 0.0 and ours > 0.0


def show_windows(place):
    """How long the span is that each row of background windows of half a second covers."""
    from nvitop import collect_in_background

    theirs = []
    thread = collect_in_background(
        lambda metrics: theirs.append(metrics["bg/duration (s)"]) or len(theirs) < 4,
        collector(set()),
        interval=0.5,
        tag="bg",
    )
    log = f"{place.directory}/windows.csv"
    gpurun = place.record(log, "--duration", "1600ms", window="500ms")
    gpurun.wait()
    thread.join()
    rows = [row for row in place.rows(log) if (row["scope"], row["metric"]) == ("host", "memory_used")]
    ours = [number(row["window_s"]) for row in rows]
    text = lambda values: " ".join(f"{value:.1f}" for value in values)
    return f"{text(theirs)} s", f"{text(ours)} s", theirs[-1] > 1.2 and max(ours) < 0.51


def show_restart(place):
    """Samples in a first tag, and in a second one that is opened a moment after the first was closed."""
    counts = []
    running = collector(set(), interval=0.05)
    original = running.take_snapshots
    taken = [0]

    def counting(*args, **kwargs):
        taken[0] += 1
        return original(*args, **kwargs)

    running.take_snapshots = counting
    with running(tag="first"):
        until(lambda: taken[0] > 5)
    counts.append(taken[0])
    running._daemon.join()  # it ends once it sees that no tag is open
    with running(tag="second"):
        time.sleep(1.0)
    counts.append(taken[0] - counts[0])
    return (
        f"{counts[0]} samples in the first tag, {counts[1]} in a second of the second",
        "its sampler runs from the first sample to the last",
        counts[1] <= 1,
    )


def show_load(place):
    """The load average's unit."""
    log = f"{place.directory}/load.csv"
    gpurun = place.record(log, "--duration", "200ms")
    gpurun.wait()
    with collector(set())(tag="run") as running:
        keys = [key for key in running.collect() if "load_average" in key and "1 min" in key and key.endswith("mean")]
    row = next(row for row in place.rows(log) if row["metric"] == "load_average_1m")
    return f"{keys[0]!r}", f"{row['metric']!r}, unit {row['unit']!r}", "(%)" in keys[0] and row["unit"] == ""


def show_lost(place):
    """The GPU that a choice of one takes where GPU 2 is lost."""
    environment = dict(os.environ, GPURUN_FAKE_NVML=str(ROOT / "tests/fake-nvml/scenarios/lost-gpu.toml"))
    nvisel = Path(sys.executable).with_name("nvisel")

    def answer(*command):
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return f"{output.stdout.strip()!r}, status {output.returncode}"

    theirs, ours = answer(str(nvisel), "-n", "1"), answer(place.gpurun, "select", "-n", "1")
    return theirs, ours, theirs == "'2', status 0" and ours == "'3', status 0"


def show_gap(place):
    """The mean of power that is 100 W, then unreadable for most of the time, then 0 W."""
    scenario = f"{place.directory}/gap.toml"
    Path(scenario).write_text(
        f'epoch_file = "{place.directory}/gap-epoch"\n[[gpu]]\nmemory_total = 1000\n'
        'power = [[0, 100], [0.8, "UNKNOWN"], [2.4, 0]]\n'
    )
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import nvitop_side_by_side as s\n"
        "with s.collector(set())(tag='run') as running:\n"
        "    time.sleep(3.0)\n"
        "    print(running.collect()['run/gpu:0/power_usage (W)/mean'])\n"
    )
    environment = dict(os.environ, GPURUN_FAKE_NVML=scenario)
    theirs = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent)], env=environment, stdout=subprocess.PIPE, text=True
    )
    log = f"{place.directory}/gap.csv"
    command = [place.gpurun, "record", "-q", "--log", log, "--interval", "100ms", "--window", "1h", "--duration", "3200ms"]
    subprocess.run(command, env=environment, check=True)
    mean = float(theirs.communicate()[0])
    row = next(row for row in place.rows(log) if row["metric"] == "power_usage")
    ours = f"mean {number(row['mean']):.0f} W of what was read, missing {row['missing']} of {int(row['samples']) + int(row['missing'])} reads"
    return f"mean {mean:.0f} W, and nothing says that most of it was not read", ours, int(row["missing"]) > 5


SHOWN = {
    "pids": show_pids,
    "cpu": show_cpu,
    "windows": show_windows,
    "restart": show_restart,
    "load": show_load,
    "lost": show_lost,
    "gap": show_gap,
}


def show(place, name):
    theirs, ours, still = SHOWN[name](place)
    print(f"{name}: {SHOWN[name].__doc__}")
    print(f"  nvitop: {theirs}")
    print(f"  gpurun: {ours}")
    if not still:
        print("  NOT AS LISTED")
    return not still


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long both watch (whole waves: even numbers)")
    parser.add_argument("--show", choices=[*SHOWN, "all"], help="a difference instead of the means")
    parser.add_argument("--gpurun", default=str(ROOT / "target/debug/gpurun"))
    parser.add_argument("--simulate", default=str(ROOT / "target/debug/simulate"))
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.show == "all":
        # Each in a process of its own: psutil and nvitop remember things.
        common = [sys.executable, __file__, "--gpurun", args.gpurun, "--simulate", args.simulate, "--show"]
        return 1 if sum(subprocess.run([*common, name], check=False).returncode for name in SHOWN) else 0
    if args.inside is None:
        with tempfile.TemporaryDirectory() as directory:
            # `simulate` lays out one driver for each scenario's name: others may run beside this.
            name = Path(directory).name
            scenario = Path(directory, f"{name}.toml")
            scenario.write_text(SCENARIO.format(dir=directory))
            again = [args.simulate, str(scenario), "--", sys.executable, __file__, *sys.argv[1:], "--inside", directory]
            environment = dict(os.environ)
            environment.pop("CUDA_VISIBLE_DEVICES", None)
            try:
                return subprocess.run(again, env=environment, check=False).returncode
            finally:
                for driver in Path(tempfile.gettempdir()).glob(f"simulated-gpus-*-{name}"):
                    shutil.rmtree(driver, ignore_errors=True)
    place = Place(args, args.inside)
    if args.show is None:
        wrong = side_by_side(place, args.seconds)
    else:
        wrong = show(place, args.show)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
