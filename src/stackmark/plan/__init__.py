"""What to run next: pure, without clocks, files or dice of its own."""
