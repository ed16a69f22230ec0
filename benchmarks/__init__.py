"""Measurements beside the other analyzers; ``make compare`` runs them."""
