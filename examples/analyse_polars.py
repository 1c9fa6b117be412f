#!/usr/bin/env python3
"""Summarise a gpurun log with Polars, reading only the columns and rows that are asked for.

    python analyse_polars.py metrics.parquet
    python analyse_polars.py 'rank*.parquet'               # several ranks as one table
"""

import sys

import polars as pl

# In CSV an empty field says nothing about its type, and the name of a Slurm run, 77.10, looks like a number.
CSV_TYPES = {
    "rank": pl.Int32, "occurrence": pl.Int32, "epoch": pl.Int64, "step": pl.Int64, "gpu": pl.Int32, "cuda": pl.Int32, "pid": pl.Int64,
    "run": pl.String, "host": pl.String, "uuid": pl.String, "process": pl.String, "unit": pl.String,
    "mean": pl.Float64, "min": pl.Float64, "max": pl.Float64, "last": pl.Float64,
    "samples": pl.UInt32, "missing": pl.UInt32,
}  # fmt: skip


def scan(pattern):
    if pattern.endswith(".csv"):
        return pl.scan_csv(pattern, schema_overrides=CSV_TYPES, try_parse_dates=True)
    return pl.scan_parquet(pattern)


def per_gpu(pattern):
    """A line for each host and GPU: how busy, how full, how hot, and how much went unseen."""

    def mean(metric):
        return pl.col("mean").filter(pl.col("metric") == metric).mean()

    def peak(metric):
        return pl.col("max").filter(pl.col("metric") == metric).max()

    return (
        scan(pattern)
        .filter((pl.col("kind") == "window") & (pl.col("scope") == "gpu"))
        .with_columns(pl.col("metric").cast(pl.String), pl.col("host").cast(pl.String))
        .group_by("host", "gpu")
        .agg(
            utilization_mean=mean("gpu_utilization"),
            memory_peak_mib=peak("memory_used"),
            power_mean_w=mean("power_usage"),
            temperature_peak_c=peak("temperature"),
            missing_reads=pl.col("missing").sum(),
        )
        .sort("host", "gpu")
        .collect()
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200):
        print(per_gpu(sys.argv[1]))
