"""nvitop's ResourceMetricCollector at work, for `benches/compare`.

    nvitop_collector.py cost PID INTERVAL WARMUP SECONDS   CPU a sample, as JSON
    nvitop_collector.py rows INTERVAL WINDOW COMMAND...    runs the job and prints a row each window, as JSON lines

The collector forgets its root process (it holds it in a weak set only), so this script keeps one alive by hand;
otherwise no process would appear at all.
"""

import json
import subprocess
import sys
import threading
import time

from nvitop import Device, HostProcess, ResourceMetricCollector


def cost(pid, interval, warmup, seconds):
    root = HostProcess(pid)
    collector = ResourceMetricCollector(Device.all(), root_pids={pid}, interval=interval)
    # A user that keeps no reference gets no process; see above.
    collector._positive_processes.add(root)
    samples = 0
    take = collector.take_snapshots

    def counted():
        nonlocal samples
        result = take()
        samples += 1
        return result

    collector.take_snapshots = counted
    with collector(tag="run"):
        time.sleep(warmup)
        cpu, before = time.process_time(), samples
        time.sleep(seconds)
        cpu, taken = time.process_time() - cpu, samples - before
        values = collector.collect()
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(
        json.dumps(
            {
                "cpu_ms": 1000 * cpu / max(taken, 1),
                "samples": taken,
                "processes": len({key.split("/")[1] for key in values if "/pid:" in key}),
                "peak_mib": int(peak) / 1024,
            }
        )
    )


def rows(interval, window, command):
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    root = HostProcess(job.pid)
    collector = ResourceMetricCollector(Device.all(), root_pids={job.pid}, interval=interval)
    collector._positive_processes.add(root)
    done = threading.Event()
    lock = threading.Lock()

    def on_collect(metrics):
        with lock:
            print(json.dumps(metrics), flush=True)
        return not done.is_set()

    collector.daemonize(on_collect, interval=window)
    truth = job.stdout.read()
    job.wait()
    done.set()
    with lock:
        print(json.dumps({"truth": json.loads(truth)}), flush=True)


if sys.argv[1] == "cost":
    cost(int(sys.argv[2]), *map(float, sys.argv[3:6]))
else:
    rows(float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
