-- Experiments of several arms: the design with its order and seed, each run's place in it, named sets of experiments that a
-- later one is held against, and published rows that a user added. `design` is JSON text, `null` for a plain `run`.

ALTER TABLE experiments ADD COLUMN kind TEXT NOT NULL DEFAULT 'run';
ALTER TABLE experiments ADD COLUMN design TEXT NOT NULL DEFAULT 'null';

-- Which arm and block a run belongs to; `role` tells a measured run from one that only fills caches.
ALTER TABLE runs ADD COLUMN arm INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN block INTEGER;
ALTER TABLE runs ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN role TEXT NOT NULL DEFAULT 'measured';

CREATE TABLE baselines (
    name $key NOT NULL,
    experiment_id $key NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    saved_unix_s $real NOT NULL,
    PRIMARY KEY (name, experiment_id)
);

CREATE TABLE published (
    id $key NOT NULL PRIMARY KEY,
    added_unix_s $real NOT NULL,
    file TEXT NOT NULL,
    entry TEXT NOT NULL
);
