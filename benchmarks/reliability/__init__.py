"""Figures for the page on reliability; ``make reliability`` runs every part and keeps its figures.

Each part is a module here that measures, and calls ``kept.keep``. A test renders again what is
kept, and compares.
"""
