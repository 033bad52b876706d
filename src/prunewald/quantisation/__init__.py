"""Trained quantisation: after any pruning, the survivors learn on while they take only a few values.

What it learned runs: in torch by `run_int8`, in onnxruntime by `to_onnx`.
"""

from prunewald.quantisation.int8_onnx import Int8File, to_onnx
from prunewald.quantisation.int8_report import Int8Layer, Int8Report
from prunewald.quantisation.int8_run import run_int8
from prunewald.quantisation.linear import LinearValues
from prunewald.quantisation.shared import SharedValues

__all__ = ["Int8File", "Int8Layer", "Int8Report", "LinearValues", "SharedValues", "run_int8", "to_onnx"]
