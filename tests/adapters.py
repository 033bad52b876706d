"""What peft 0.21 puts around a model and its layers, transcribed: PeftModel, LoraModel and LoRA's Linear."""

from torch import nn


class BaseTunerLayer:
    """peft/tuners/tuners_utils.py."""


class LoraLayer(BaseTunerLayer):
    """peft/tuners/lora/layer.py."""

    def __init__(self, base_layer):
        self.base_layer = base_layer
        self.scaling = {}
        self.lora_dropout, self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()


class Linear(nn.Module, LoraLayer):
    """peft/tuners/lora/layer.py: two small matrices beside a layer that stays as it is."""

    def __init__(self, base_layer, adapter_name, r=2, lora_alpha=4):
        super().__init__()
        LoraLayer.__init__(self, base_layer)
        self.lora_dropout[adapter_name] = nn.Identity()
        self.lora_A[adapter_name] = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B[adapter_name] = nn.Linear(r, base_layer.out_features, bias=False)
        self.scaling[adapter_name] = lora_alpha / r
        self._active_adapter = adapter_name

    def forward(self, x, *args, **kwargs):
        result = self.base_layer(x, *args, **kwargs)
        for active in (self._active_adapter,):
            added = self.lora_B[active](self.lora_A[active](self.lora_dropout[active](x)))
            result = result + added * self.scaling[active]
        return result


class BaseTuner(nn.Module):
    """peft/tuners/tuners_utils.py, with the two steps that put the adapters in and freeze the rest."""

    def __init__(self, model, targets, adapter_name="default"):
        super().__init__()
        self.model = model
        self.peft_config = self.model.peft_config = {adapter_name: targets}
        for name in targets:
            parent, _, last = name.rpartition(".")
            layer = model.get_submodule(name)
            setattr(model.get_submodule(parent), last, Linear(layer, adapter_name))
        for name, param in model.named_parameters():
            param.requires_grad = "lora_" in name

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


class LoraModel(BaseTuner):
    """peft/tuners/lora/model.py."""

    prefix = "lora_"

    def unload(self):
        """Take the adapters out again, without adding them to the weights."""
        for name in next(iter(self.peft_config.values())):
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, self.model.get_submodule(name).base_layer)
        return self.model


class PeftModel(nn.Module):
    """peft/peft_model.py."""

    def __init__(self, model, targets):
        super().__init__()
        self.base_model = LoraModel(model, targets)

    @property
    def peft_config(self):
        return self.base_model.peft_config

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


def get_peft_model(model, targets):
    """peft/mapping_func.py."""
    return PeftModel(model, targets)
