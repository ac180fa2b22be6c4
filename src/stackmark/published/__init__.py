"""What others printed: the table, the search, the nearest neighbour."""
