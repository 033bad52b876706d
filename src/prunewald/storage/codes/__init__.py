"""Entropy codes: a sequence of small numbers as bytes."""
