"""Published results: the table, the search, the nearest neighbour."""
