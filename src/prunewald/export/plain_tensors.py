"""Plain safetensors, which need nothing of prunewald."""

from typing import Any

from torch import Tensor, nn

from prunewald.model.modules import plain
from prunewald.storage.state_dict import check_names
from prunewald.util.files import FilePath, replacing


def to_safetensors(model: nn.Module, path: FilePath) -> None:
    """Write all parameters and buffers, dense, zeros included; `safetensors.torch.load_model` reads it back.

    Of tied tensors only the first is written, as safetensors' own `save_model` does, and the metadata has their other
    names.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError("to_safetensors() needs safetensors: pip install safetensors") from error
    first: dict[Any, str] = {}
    others: dict[str, str] = {}
    kept: dict[str, Tensor] = {}
    state = plain(model).state_dict()
    check_names(state)
    for name, tensor in state.items():
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else name
        if first.setdefault(same, name) == name:
            kept[name] = tensor.detach().cpu().contiguous()
        else:
            others[name] = first[same]
    with replacing(path) as file:
        file.write(save(kept, metadata={"format": "pt", **others}))
