-- Views for people who read a copy of the ledger with Datasette or another reader of SQLite. stackmark itself uses none of them.
-- Times are UTC. A rate is larger where the run was faster; rate_unit 1/s means that the figure is a time, 1 / rate seconds.

DROP VIEW IF EXISTS v_runs;
CREATE VIEW v_runs AS
SELECT id, experiment_id, workload, place, chip, precision, batch, framework, status, rate_per_s, rate_unit,
       step_p50_s, step_p99_s, steady, memory_peak_mib, energy_j, failure_kind, failure_message,
       strftime('%Y-%m-%d %H:%M:%S', started_unix_s, 'unixepoch') AS started_utc,
       round(ended_unix_s - started_unix_s, 2) AS seconds, arm, block, role, machine_id, stackmark_version
FROM runs;

DROP VIEW IF EXISTS v_experiments;
CREATE VIEW v_experiments AS
SELECT e.id, strftime('%Y-%m-%d %H:%M:%S', e.created_unix_s, 'unixepoch') AS created_utc, e.kind,
       count(r.id) AS runs, coalesce(sum(r.status = 'done'), 0) AS done, coalesce(sum(r.status = 'failed'), 0) AS failed,
       group_concat(DISTINCT r.workload) AS workloads, group_concat(DISTINCT r.place) AS places,
       group_concat(DISTINCT r.chip) AS chips, e.command, e.note, e.suite_id
FROM experiments AS e LEFT JOIN runs AS r ON r.experiment_id = e.id
GROUP BY e.id;

-- What was measured under which conditions, and how much it spread. It cannot replace a verdict: runs of different days lie in one row.
DROP VIEW IF EXISTS v_rates;
CREATE VIEW v_rates AS
SELECT workload, chip, place, precision, batch, framework, rate_unit, count(*) AS runs,
       avg(rate_per_s) AS mean_rate_per_s, min(rate_per_s) AS lowest_rate_per_s, max(rate_per_s) AS highest_rate_per_s,
       100 * sqrt(max(avg(rate_per_s * rate_per_s) - avg(rate_per_s) * avg(rate_per_s), 0)) / avg(rate_per_s) AS spread_percent,
       strftime('%Y-%m-%d %H:%M:%S', max(started_unix_s), 'unixepoch') AS last_utc
FROM runs
WHERE status = 'done' AND role = 'measured' AND rate_per_s IS NOT NULL
GROUP BY workload, chip, place, precision, batch, framework, rate_unit;

DROP VIEW IF EXISTS v_failures;
CREATE VIEW v_failures AS
SELECT failure_kind, workload, place, chip, count(*) AS runs, max(failure_message) AS a_message,
       strftime('%Y-%m-%d %H:%M:%S', max(started_unix_s), 'unixepoch') AS last_utc
FROM runs
WHERE status IN ('failed', 'invalid')
GROUP BY failure_kind, workload, place, chip;

DROP VIEW IF EXISTS v_chips;
CREATE VIEW v_chips AS
SELECT chip, chip_uuid, count(*) AS runs, coalesce(sum(status = 'failed'), 0) AS failed,
       count(DISTINCT workload) AS workloads, count(DISTINCT machine_id) AS machines,
       strftime('%Y-%m-%d %H:%M:%S', min(started_unix_s), 'unixepoch') AS first_utc,
       strftime('%Y-%m-%d %H:%M:%S', max(started_unix_s), 'unixepoch') AS last_utc
FROM runs
WHERE chip IS NOT NULL
GROUP BY chip, chip_uuid;

DROP VIEW IF EXISTS v_days;
CREATE VIEW v_days AS
SELECT strftime('%Y-%m-%d', started_unix_s, 'unixepoch') AS day_utc, workload, chip, place, rate_unit, count(*) AS runs,
       coalesce(sum(status = 'failed'), 0) AS failed, avg(rate_per_s) AS mean_rate_per_s
FROM runs
WHERE role = 'measured'
GROUP BY day_utc, workload, chip, place, rate_unit;

DROP VIEW IF EXISTS v_baselines;
CREATE VIEW v_baselines AS
SELECT b.name, strftime('%Y-%m-%d %H:%M:%S', b.saved_unix_s, 'unixepoch') AS saved_utc, b.experiment_id, r.workload, r.chip,
       r.place, count(r.id) AS runs, avg(r.rate_per_s) AS mean_rate_per_s, r.rate_unit
FROM baselines AS b JOIN runs AS r ON r.experiment_id = b.experiment_id AND r.status = 'done'
GROUP BY b.name, b.experiment_id, r.workload, r.chip, r.place, r.rate_unit;
