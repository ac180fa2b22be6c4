"""Quick looks at what is stored, for completion in a shell: names alone, without the engine and without SQLAlchemy."""

from stackmark.ledger.glance import TYPEABLE as TYPEABLE
from stackmark.ledger.glance import glance_at_baselines as glance_at_baselines
from stackmark.ledger.glance import glance_at_experiments as glance_at_experiments
from stackmark.ledger.glance import glance_at_runs as glance_at_runs
