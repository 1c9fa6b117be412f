#!/usr/bin/env python3
"""Load a gpurun log with pandas, pivot it, and plot GPU utilisation and memory.

    python analyse_pandas.py metrics.parquet plot.png
    python analyse_pandas.py 'rank*.parquet' plot.png      # several ranks as one table
    python analyse_pandas.py metrics.csv plot.png

The x axis is the training step where the job reported steps, else the time.
"""

import glob
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

# In CSV an empty field says nothing about its type, so the types are named here. An empty unit is a
# unit (a bare number), not a missing value.
CSV_TYPES = {
    "rank": "Int32", "occurrence": "Int32", "epoch": "Int64", "step": "Int64", "gpu": "Int32", "cuda": "Int32", "pid": "Int64",
    "samples": "UInt32", "missing": "UInt32",
    "run": "str", "host": "str", "kind": "str", "tag": "str", "scope": "str",
    "uuid": "str", "process": "str", "metric": "str", "unit": "str",
}  # fmt: skip


def load(pattern):
    """One table of all files that the pattern means."""
    tables = []
    for name in sorted(glob.glob(pattern)):
        if name.endswith(".csv"):
            table = pd.read_csv(name, dtype=CSV_TYPES, parse_dates=["time", "start"])
        else:
            table = pd.read_parquet(name, dtype_backend="numpy_nullable")
        tables.append(table)
    if not tables:
        sys.exit(f"no file matches {pattern}")
    return pd.concat(tables, ignore_index=True)


def gpu_table(rows, metric):
    """Mean of a metric: a line for each step or time, a column for each rank and GPU."""
    by_step = (rows["kind"] == "step").any()
    rows = rows[(rows["scope"] == "gpu") & (rows["metric"] == metric)]
    rows = rows[rows["kind"] == ("step" if by_step else "window")]
    name = "GPU " + rows["gpu"].astype("str")
    if rows["rank"].notna().any():
        name = "rank " + rows["rank"].astype("str") + " " + name
    return rows.assign(name=name).pivot_table(
        index="step" if by_step else "time", columns="name", values="mean", observed=True
    )


def main(pattern, output):
    rows = load(pattern)
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(10, 6))
    for axis, metric, unit in zip(axes, ("gpu_utilization", "memory_used"), ("%", "MiB")):
        table = gpu_table(rows, metric)
        table.plot(ax=axis)
        axis.set_ylabel(f"{metric} ({unit})")
        print(f"{metric}: {len(table)} points for {len(table.columns)} GPUs")
        print(table.mean().rename("mean over the run").to_string())
    figure.tight_layout()
    figure.savefig(output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
