-- How far the run at hand of an experiment is, for other processes that watch it. Its driver writes the row at most once a second
-- and removes it at the end; one that was left by a killed driver is recognised by the claim.

CREATE TABLE progress (
    experiment_id $key NOT NULL PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE,
    updated_unix_s $real NOT NULL,
    progress TEXT NOT NULL
);
