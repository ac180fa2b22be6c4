"""What is created in a cluster, as plain data."""
