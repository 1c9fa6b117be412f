"""Read what gpurun wrote with the readers that people use, and compare with what was meant.

check.py long DIR            m.csv, m.parquet against expected.jsonl, with every reader
check.py ranks DIR           four Parquet files as one dataset
check.py wide DIR            w.csv, w.parquet
check.py journal FILE ROWS   the whole batches of a journal, torn or not
check.py events DIR RUN FAST POINTS   TensorBoard itself: every series, one point per window
check.py trainer DIR         writes a trainer's own run
check.py rewrite DIR         m.csv, m.parquet read and written again by each program
"""

import json
import math
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

TIMES = ["time", "start"]
TEXTS = ["run", "host", "kind", "tag", "scope", "uuid", "process", "metric", "unit"]
INTS = ["rank", "occurrence", "epoch", "step", "gpu", "cuda", "pid", "samples", "missing"]
FLOATS = ["window_s", "mean", "min", "max", "last"]


def expected(directory):
    with open(directory / "expected.jsonl") as lines:
        return [json.loads(line) for line in lines]


def plain(value):
    """None for every kind of missing value."""
    if value is None or value != value or str(value) in ("<NA>", "NaT"):
        return None
    return value


def compare(name, rows, wanted, csv=False):
    assert len(rows) == len(wanted), f"{name}: {len(rows)} rows, not {len(wanted)}"
    for n, (row, want) in enumerate(zip(rows, wanted)):
        assert list(row) == list(want), f"{name}: columns {list(row)}"
        for column, value in want.items():
            got = plain(row[column])
            if column in TIMES:
                got = round(got.timestamp() * 1e6)
                assert row[column].utcoffset().total_seconds() == 0, f"{name}: time zone"
            elif csv and column in TEXTS:
                value = value and value.replace("\n", " ")
                got = got or None if not value else got
                value = value or None
            elif got is not None and column in FLOATS:
                assert isinstance(got, float), f"{name}: {column} is {type(got)}"
            elif got is not None and column in INTS:
                assert int(got) == got, f"{name}: {column} is {got}"
                got = int(got)
            assert got == value, f"{name} row {n}: {column} is {got!r}, not {value!r}"


def records(table):
    return table.to_pylist()


def long(directory):
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.parquet as pq

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import analyse_pandas
    import analyse_polars

    wanted = expected(directory)
    parquet, csv = str(directory / "m.parquet"), str(directory / "m.csv")

    table = pq.read_table(parquet)
    for name in TIMES:
        assert str(table.schema.field(name).type) == "timestamp[us, tz=UTC]", table.schema
    for name, kind in [("gpu", "int32"), ("step", "int64"), ("samples", "uint32"), ("mean", "double")]:
        assert str(table.schema.field(name).type) == kind, table.schema
    assert str(table.schema.field("metric").type).startswith("dictionary"), table.schema
    compare("pyarrow", records(table), wanted)
    metadata = {k.decode(): v.decode() for k, v in pq.read_schema(parquet).metadata.items()}
    assert metadata["gpurun.schema_version"] == "1" and metadata["gpurun.exit"] == "3", metadata
    assert json.loads(metadata["gpurun.argv"])[0] == "python"
    file = pq.ParquetFile(parquet).metadata
    for column in range(file.num_columns):
        chunk = file.row_group(0).column(column)
        assert chunk.compression == "ZSTD" and chunk.statistics is not None, chunk

    frame = pd.read_parquet(parquet)
    assert str(frame["time"].dtype) == "datetime64[us, UTC]", frame.dtypes
    assert str(frame["metric"].dtype) == "category"
    compare("pandas parquet", frame.to_dict("records"), wanted)
    # With nulls in them these columns are floats unless pandas is told otherwise, as the documents say.
    nullable = {"dtype_backend": "numpy_nullable"}
    for frame in (pd.read_parquet(parquet, **nullable), pd.read_csv(csv, parse_dates=TIMES, dtype={"run": "string"}, **nullable)):
        assert set(frame["run"]) == {row["run"] for row in wanted}, set(frame["run"])
        for column in INTS:
            assert str(frame[column].dtype).lower().strip("u").startswith("int"), frame.dtypes
    frame = analyse_pandas.load(csv)
    compare("pandas csv", frame.to_dict("records"), wanted, csv=True)

    frame = pl.read_parquet(parquet)
    assert frame.schema["time"] == pl.Datetime("us", "UTC"), frame.schema
    compare("polars parquet", frame.to_dicts(), wanted)
    frame = analyse_polars.scan(csv).collect()
    compare("polars csv", frame.to_dicts(), wanted, csv=True)

    for name, source in [("parquet", f"read_parquet('{parquet}')"), ("csv", f"read_csv('{csv}', types = {{'run': 'VARCHAR'}})")]:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        types = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})").fetchall())
        assert types["time"] == "TIMESTAMP WITH TIME ZONE" and types["mean"] == "DOUBLE", types
        found = connection.execute(f"SELECT * FROM {source}")
        columns = [d[0] for d in found.description]
        rows = [dict(zip(columns, row)) for row in found.fetchall()]
        compare(f"duckdb {name}", rows, wanted, csv=name == "csv")


def ranks(directory):
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    rows = int((directory / "rows").read_text())
    directory = directory / "ranks"
    counts = {str(rank): rows for rank in range(4)}

    def check(name, ranks):
        got = {}
        for rank in ranks:
            got[str(rank)] = got.get(str(rank), 0) + 1
        assert got == counts, f"{name}: {got}"

    check("pandas", pd.read_parquet(directory)["rank"])
    check("pyarrow", ds.dataset(directory).to_table()["rank"].to_pylist())
    check("polars", pl.scan_parquet(directory).collect()["rank"])
    check("polars glob", pl.scan_parquet(f"{directory}/*.parquet").collect()["rank"])
    found = duckdb.sql(f"SELECT rank FROM '{directory}/*.parquet'").fetchall()
    check("duckdb", [row[0] for row in found])


def wide(directory):
    import duckdb
    import pandas as pd
    import polars as pl

    wanted = {}
    for row in expected(directory):
        if row["scope"] not in ("host", "gpu", "job"):
            continue
        key = (row["time"], row["kind"])
        subject = row["scope"]
        if row["gpu"] is not None:
            subject = f"cuda:{row['cuda']} (gpu:{row['gpu']})"
        name = row["metric"] + (f" ({row['unit']})" if row["unit"] else "")
        for stat in ("mean", "min", "max", "last"):
            wanted.setdefault(key, {})[f"run/{subject}/{name}/{stat}"] = row[stat]

    def check(name, rows):
        assert len(rows) == len(wanted), f"{name}: {len(rows)} rows"
        for row in rows:
            want = wanted[(round(row["time"].timestamp() * 1e6), row["kind"])]
            assert len(row) == 11 + len(want), f"{name}: {len(row)} columns"
            for column, value in want.items():
                assert plain(row[column]) == value, f"{name}: {column} is {row[column]}, not {value}"

    parquet, csv = str(directory / "w.parquet"), str(directory / "w.csv")
    check("pandas parquet", pd.read_parquet(parquet).to_dict("records"))
    check("pandas csv", pd.read_csv(csv, parse_dates=TIMES).to_dict("records"))
    check("polars parquet", pl.read_parquet(parquet).to_dicts())
    check("polars csv", pl.read_csv(csv, try_parse_dates=True, infer_schema_length=None).to_dicts())
    duckdb.sql("SET TimeZone = 'UTC'")
    for source in (parquet, csv):
        found = duckdb.sql(f"SELECT * FROM '{source}'")
        check("duckdb", [dict(zip(found.columns, row)) for row in found.fetchall()])


def journal(path, rows):
    import pyarrow as pa

    got = 0
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_stream(file)
        while True:
            try:
                batch = reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                break
            got += batch.num_rows
            assert batch.schema.field("time").type == pa.timestamp("us", "UTC")
            batch.to_pylist()
    assert got == rows, f"pyarrow read {got} rows of the journal, not {rows}"


def fetch(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def events(directory, run, fast, points):
    wanted = {int(step) for step in points.split(",")}
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", "0",
         "--host", "127.0.0.1", "--reload_interval", "1", f"--load_fast={fast}"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        said = ""
        while not (found := re.search(r"http://\S+:\d+/", said)):
            line = server.stderr.readline()
            assert line, f"TensorBoard ended: {said}"
            said += line
        base = found[0] + "data/plugin/scalars/"
        deadline = time.monotonic() + 100
        while True:
            tags = fetch(base + "tags").get(run, {})
            if tags and all_there(base, run, tags, wanted):
                break
            assert time.monotonic() < deadline, f"TensorBoard never showed {run}: {list(tags)[:5]}"
            time.sleep(0.2)
        assert "gpu:2/gpu_utilization (%)/mean" in tags, sorted(tags)
        assert "gpu:2/gpu_utilization (%)/max" in tags, sorted(tags)
        # What matters less is written only when asked for.
        assert not [tag for tag in tags if "decoder" in tag or "fan_speed" in tag], sorted(tags)
        layout = fetch(found[0] + "data/plugin/custom_scalars/layout")
        charts = {c["title"]: [chart["title"] for chart in c["chart"]] for c in layout["category"]}
        # The page shows the last chart of a category first.
        assert list(charts)[0] == "1 GPU" and charts["1 GPU"][-1] == "gpu_utilization (%)", charts
        band = layout["category"][0]["chart"][0]["margin"]["series"][0]
        assert set(band.values()) <= set(tags), band
        query = urllib.parse.urlencode({"run": run, "tag": layout["category"][-1]["chart"][0]["multiline"]["tag"][0]})
        shown = fetch(found[0] + "data/plugin/custom_scalars/scalars?" + query)
        assert shown["regex_valid"], shown
    finally:
        server.terminate()
        server.wait()


def all_there(base, run, tags, wanted):
    for tag in tags:
        query = urllib.parse.urlencode({"run": run, "tag": tag})
        steps = [step for _, step, value in fetch(base + "scalars?" + query)]
        assert steps == sorted(set(steps)), f"{tag}: steps {steps}"
        assert tag.startswith(("steps/", "train/")) or set(steps) <= wanted, f"{tag}: steps {steps}"
        if tag.startswith("host/cpu_percent") and set(steps) != wanted:
            return False
    return True


def trainer(directory):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(directory)
    for step in range(1, 21):
        value = Summary.Value(tag="loss", simple_value=1 / step)
        writer.add_event(Event(wall_time=1.79e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()


def rewrite(directory):
    """What people do to logs: each program's own default, and every codec that pandas and Polars write."""
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.parquet as pq

    parquet, csv = str(directory / "m.parquet"), str(directory / "m.csv")
    out = directory / "again"
    out.mkdir()
    frame = pd.read_parquet(parquet)
    frame.to_parquet(out / "pandas.parquet")
    for codec in ("gzip", "zstd", "lz4", None):
        frame.to_parquet(out / f"pandas-{codec}.parquet", compression=codec)
    frame.to_csv(out / "pandas.csv")
    frame = pd.read_csv(csv, float_precision="round_trip")
    frame.to_csv(out / "pandas-of-csv.csv", index=False)
    frame.to_parquet(out / "pandas-of-csv.parquet")
    frame = pl.read_parquet(parquet)
    frame.write_parquet(out / "polars.parquet")
    for codec in ("snappy", "gzip", "lz4", "uncompressed"):
        frame.write_parquet(out / f"polars-{codec}.parquet", compression=codec)
    frame.write_csv(out / "polars.csv")
    frame = pl.read_csv(csv, try_parse_dates=True, infer_schema_length=None)
    frame.write_parquet(out / "polars-of-csv.parquet")
    frame.write_csv(out / "polars-of-csv.csv")
    table = pq.read_table(parquet)
    pq.write_table(table, out / "pyarrow.parquet")
    for suffix in ("parquet", "csv"):
        duckdb.sql(f"COPY (FROM '{parquet}') TO '{out}/duckdb.{suffix}'")


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    if what == "journal":
        journal(Path(where), int(more[0]))
    elif what == "events":
        events(where, *more)
    elif what == "trainer":
        trainer(where)
    else:
        {"long": long, "ranks": ranks, "wide": wide, "rewrite": rewrite}[what](Path(where))
