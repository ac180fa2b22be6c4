"""What the numbers mean: pure functions from what was remembered to what may be said."""
