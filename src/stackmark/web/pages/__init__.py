"""One chapter for each kind of page. A page is a function from a request to markup; the ledger is open, and only read."""
