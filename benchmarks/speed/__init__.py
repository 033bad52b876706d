"""Is it faster? Pruned networks run in every way that there is, beside dense, torch and onnxruntime, in one run.

    python -m benchmarks.speed measure --json OUT.json [--networks mlp ...]     # adds to what the file has
    python -m benchmarks.speed table --json OUT.json > table.txt
    python -m benchmarks.speed accuracy --data DIR --out DIR --json OUT.json    # trains what is not there
    python -m benchmarks.speed figure --json OUT.json --png latency.png

A cell is a network at one level, a number of threads and a size of batch. In a cell all ways take turns; each runs what
was saved to a file and read again, its outputs are compared with those of the pruned model as it is (the row "dense",
which is there twice: the second one, "dense, again", says how far two equal rows are apart). Memory is the peak of a
process in which nothing but this way was loaded and run, over the process before it.
"""
