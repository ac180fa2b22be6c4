-- Who adds runs to an experiment now. A claim ends when its driver gives it back, is seen to be dead, or has not renewed it
-- until `expires_unix_s` (by the clock of the database server, or of the machine that has the file).

CREATE TABLE claims (
    experiment_id $key NOT NULL PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE,
    token TEXT NOT NULL,
    host TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace BIGINT,
    driver_pid BIGINT NOT NULL,
    driver_start_ticks BIGINT,
    taken_unix_s $real NOT NULL,
    expires_unix_s $real NOT NULL
);
