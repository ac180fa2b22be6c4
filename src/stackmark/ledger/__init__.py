"""The ledger: runs and their events, baselines, added rows, imports and exports.

Nothing is imported here on purpose. SQLAlchemy costs a quarter of a second, and neither the table of published results
nor `stackmark --help` should pay it: import `Ledger` from `stackmark.ledger.store`, rows from `stackmark.ledger.rows`.
"""
