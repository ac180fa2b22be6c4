"""What a person or a script sees: from data that it is handed, never from where they came."""
