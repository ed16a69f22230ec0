"""Hostile and broken input: what tests and ``benchmarks.reliability.hostile`` have in common."""
