"""Device code that several implementations share."""
