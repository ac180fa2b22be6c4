"""The family `serve/`: networks that answer queries under load."""
