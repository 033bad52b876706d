"""A model that runs on a CPU without its zeros, where that is faster.

`run.py` is the call. `recorded.py` sees what layers are given, `trial.py` tries every way on it (`backends.py`), by the
clock of `stopwatch.py`; `fusing.py` does so for layers in a row. `sparse_layers.py` has what is put into the model,
`speed_report.py` what is said of it. Our kernel is `kernel.c`: `compiler.py` builds it, `formats.py` stores weights as
it wants them, `native.py` calls it. `inspector.py` calls MKL.
"""

from prunewald.sparse.run import run_sparse
from prunewald.sparse.speed_report import LayerSpeed, SpeedReport

__all__ = ["LayerSpeed", "SpeedReport", "run_sparse"]
