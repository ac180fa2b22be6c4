"""`cluster sweep`: make the same run on every GPU of every node, and find slow devices."""
