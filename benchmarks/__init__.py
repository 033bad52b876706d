"""Ratios measured side by side in one run, with peak memory; `make bench`."""
