"""The engine: it combines plan, places, ledger and verdict, and works without the command line."""
