"""The one room where plan, places, ledger and verdict meet; usable without the command line."""
