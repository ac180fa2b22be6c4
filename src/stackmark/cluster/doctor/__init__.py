"""Is a cluster fit for GPU work? Diagnostics, each a pure judgement of what was seen, with what to do about it."""
