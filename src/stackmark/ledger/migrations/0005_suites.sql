-- A suite is an experiment whose plan is in `design`. Each of its rows is an experiment of its own, which names the suite here.

ALTER TABLE experiments ADD COLUMN suite_id $key;
CREATE INDEX experiments_suite ON experiments (suite_id, id);
