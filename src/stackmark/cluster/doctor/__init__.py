"""Is a cluster fit for GPU work? A ladder of rungs, each a pure judgement of what was seen, with what to do about it."""
