"""A job whose numbers are known: it measures itself and prints the truth as one JSON line.

    known.py PIDFILE SECONDS

It stands in PIDFILE (so the simulated driver sees it on GPU 0), and while it runs: a child that is started from
another thread burns 2 s of CPU; short children burn 20 ms each; then it holds 400 MB more for a tenth of a
second.
"""

import json
import os
import resource
import subprocess
import sys
import threading
import time

SPIN = "import time\nwhile time.process_time() < {}: pass"


def spin(seconds):
    subprocess.run([sys.executable, "-S", "-E", "-c", SPIN.format(seconds)], check=True)


def shorts(count):
    """Forked children that use 20 ms each and are waited for."""
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            end = time.process_time() + 0.02
            while time.process_time() < end:
                pass
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.01)


def main():
    pidfile, seconds = sys.argv[1], float(sys.argv[2])
    start = time.monotonic()
    with open(pidfile, "w") as file:
        file.write(f"{os.getpid()} 1000 40\n")
    time.sleep(0.4)
    threads = [threading.Thread(target=spin, args=(2.0,)), threading.Thread(target=shorts, args=(50,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # When no forked child shares it: two holders of one block would count twice.
    block = bytearray(400 * 1000 * 1000)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(0.1)
    del block
    time.sleep(max(0.0, seconds - (time.monotonic() - start)))
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        json.dumps(
            {
                "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in usage),
                "peak_mib": usage[0].ru_maxrss / 1024,
                "wall": time.monotonic() - start,
            }
        ),
        flush=True,
    )


main()
