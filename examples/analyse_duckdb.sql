-- Questions to a gpurun log in DuckDB. In the directory of the log:
--     duckdb < analyse_duckdb.sql
-- The pattern reads one file or those of all ranks.

CREATE OR REPLACE VIEW metrics AS SELECT * FROM read_parquet('*.parquet');

-- What was measured, and how much of it could not be read.
SELECT scope, metric, unit, count(*) AS windows, sum(samples) AS reads, sum(missing) AS missing_reads
FROM metrics
GROUP BY ALL
ORDER BY scope, metric;

-- How busy and how full each GPU was.
SELECT
    host,
    gpu,
    round(avg(mean) FILTER (metric = 'gpu_utilization'), 1) AS utilization_percent,
    max("max") FILTER (metric = 'memory_used') AS memory_peak_mib,
    round(avg(mean) FILTER (metric = 'power_usage'), 1) AS power_w
FROM metrics
WHERE scope = 'gpu' AND kind = 'window'
GROUP BY ALL
ORDER BY ALL;

-- Windows in which a GPU idled while the job ran.
SELECT time, host, gpu, mean AS utilization_percent
FROM metrics
WHERE scope = 'gpu' AND kind = 'window' AND metric = 'gpu_utilization' AND mean < 20
ORDER BY time, host, gpu
LIMIT 20;

-- By training step: the mean over all GPUs of all ranks.
SELECT step, avg(mean) AS utilization_percent
FROM metrics
WHERE scope = 'gpu' AND kind = 'step' AND metric = 'gpu_utilization'
GROUP BY step
ORDER BY step;

-- By epoch: steps, and milliseconds of a step.
SELECT epoch, sum(samples) AS steps, round(sum(mean * samples) / sum(samples), 1) AS step_ms, max("max") AS longest_ms
FROM metrics
WHERE kind = 'step' AND scope = 'batch_time' AND metric = 'step'
GROUP BY epoch
ORDER BY epoch;

-- What the files say about their runs.
SELECT file_name, decode(key) AS key, decode(value) AS value
FROM parquet_kv_metadata('*.parquet')
WHERE decode(key) IN ('gpurun.argv', 'gpurun.driver', 'gpurun.start', 'gpurun.exit')
ORDER BY ALL;
