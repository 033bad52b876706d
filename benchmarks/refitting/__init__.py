"""What is left of accuracy where nothing is trained again: pruning and refitting beside SparseGPT and Wanda.

    python -m benchmarks.refitting measure --data DIR --out OUT     # trains too; goes on where it was stopped
    python -m benchmarks.refitting pack    --data DIR --out OUT     # all records into OUT/records.json.xz
    python -m benchmarks.refitting table   --out OUT                # tables and figure, from that file alone

`--data` is a folder of data sets as the lab takes it. The corpus of the text network is Debian's python3-doc; where it
is not installed, the text network is left out.
"""
