"""A pruned model for others to run: plain safetensors, ONNX, torch.export, and torch.nn.utils.prune's own form.

In all of them the zeros are in the weights; nothing of prunewald is needed to load them.
"""

from prunewald.export.onnx_file import to_onnx
from prunewald.export.plain_tensors import to_safetensors
from prunewald.export.program import to_torch_export
from prunewald.export.torch_prune import from_torch_prune, to_torch_prune

__all__ = ["from_torch_prune", "to_onnx", "to_safetensors", "to_torch_export", "to_torch_prune"]
