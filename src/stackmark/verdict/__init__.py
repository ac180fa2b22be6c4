"""Verdicts: pure functions from stored measurements to statements about them."""
