-- The first ledger. Times are Unix seconds; request, flags, place_options, handle and spec are JSON text; $blob, $key and
-- $real are what the database calls bytes, a text that sorts byte by byte, and a 64-bit float (schema.py). Wide columns
-- stand last, so that SQLite reads the narrow ones without following a row to its overflow pages.

CREATE TABLE experiments (
    id $key NOT NULL PRIMARY KEY,
    created_unix_s $real NOT NULL,
    command TEXT NOT NULL,
    note TEXT NOT NULL,
    request TEXT NOT NULL
);

CREATE TABLE runs (
    id $key NOT NULL PRIMARY KEY,
    experiment_id $key NOT NULL REFERENCES experiments (id),
    position INTEGER NOT NULL,
    workload TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', 'invalid')),
    started_unix_s $real NOT NULL,
    ended_unix_s $real,
    place TEXT NOT NULL,
    device TEXT,
    chip TEXT,
    chip_uuid TEXT,
    precision TEXT,
    batch BIGINT,
    tune TEXT,
    framework TEXT,
    rate_per_s $real,
    rate_unit TEXT,
    steps_total BIGINT,
    steps_used BIGINT,
    steady TEXT,
    step_p50_s $real,
    step_p90_s $real,
    step_p99_s $real,
    step_cv $real,
    wall_s $real,
    setup_s $real,
    memory_peak_mib $real,
    energy_j $real,
    data_share $real,
    machine_id TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    driver_pid BIGINT NOT NULL,
    stackmark_version TEXT NOT NULL,
    spec_digest TEXT NOT NULL,
    failure_kind TEXT,
    failure_message TEXT,
    failure_hint TEXT,
    flags TEXT NOT NULL,
    place_options TEXT NOT NULL,
    handle TEXT NOT NULL,
    spec TEXT NOT NULL
);

-- Lists are newest first, so every filter's index goes on in the order of the list: a page is one walk along it. The
-- columns after that are the other filters, so that filters together, and counts, are answered by the index alone.
CREATE INDEX runs_by_start ON runs (started_unix_s, id, workload, status, chip, place);
CREATE INDEX runs_by_workload ON runs (workload, started_unix_s, id, status, chip, place);
CREATE INDEX runs_by_chip ON runs (chip, started_unix_s, id, status, workload, place);
CREATE INDEX runs_by_status ON runs (status, started_unix_s, id, workload, chip, place);
CREATE INDEX runs_by_place ON runs (place, started_unix_s, id);
CREATE INDEX runs_by_experiment ON runs (experiment_id, started_unix_s, id);

-- One row a run: its whole output, lines joined by newlines, UTF-8, zlib.
CREATE TABLE streams (
    run_id $key NOT NULL PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    lines BIGINT NOT NULL,
    data $blob NOT NULL
);
