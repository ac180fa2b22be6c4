"""What several implementations need of a device."""
