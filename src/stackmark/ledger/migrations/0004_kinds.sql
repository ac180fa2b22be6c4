-- Each kind of experiment has columns of its own for where a run stands in it. Before, a sweep and an operator list kept theirs in
-- `arm`, `block` and `attempt`, which belong to a comparison: arm, block, and which repetition of the block.

-- Of a sweep: the slot (a device of a node), the slot that is suspected in a repetition, and the pass of all slots, from 0.
ALTER TABLE runs ADD COLUMN slot INTEGER;
ALTER TABLE runs ADD COLUMN suspect INTEGER;
-- Of an operator list: the pass through the list, from 0, and which piece of the pass.
ALTER TABLE runs ADD COLUMN pass_number INTEGER;
ALTER TABLE runs ADD COLUMN piece INTEGER;

UPDATE runs SET slot = arm, suspect = CASE WHEN block IS NULL THEN NULL ELSE attempt - 1 END,
    pass_number = CASE WHEN block IS NULL THEN attempt ELSE NULL END, arm = 0, attempt = 0
WHERE experiment_id IN (SELECT id FROM experiments WHERE kind = 'sweep');

-- Of the experiments of one arm, only an operator list has ever had blocks.
UPDATE runs SET pass_number = block, piece = attempt, block = NULL, attempt = 0
WHERE block IS NOT NULL AND experiment_id IN (SELECT id FROM experiments WHERE kind = 'run');
