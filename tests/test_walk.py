"""A pruning stays short to read: how many functions it calls, and how often it enters another file."""

from tools.walk import changes, walk


def test_the_walk_of_a_pruning_stays_short():
    calls = walk()
    assert 0 < len(calls) <= 209
    assert changes(calls) <= 120, "data should flow one way: see `python tools/walk.py --calls`"
