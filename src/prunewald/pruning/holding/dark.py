"""Dark values: pruned weights are zero for the model, and learn on where it cannot see them.  Guo et al. (2016)."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from prunewald.pruning.holding.holding import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.util.trees import copied


class Dark(Holding):
    """Keeps the values of pruned weights away from the model, except while the optimizer moves them."""

    competes: ClassVar[bool] = True

    def __init__(self, zeros: Zeros) -> None:
        self._zeros = zeros
        self._values: dict[str, Tensor] = {}  # whole parameters, of which only the pruned entries count
        zeros.hard = False

    @torch.no_grad()
    def ready_(self, names: Collection[str]) -> None:
        """Give the pruned weights their dark values."""
        for name in names:
            if name in self._values:
                param = self._zeros.params[name]
                # What is alive stays what it is: it may have been loaded or changed since.
                param.copy_(torch.where(self._zeros.mask(name), param, self._values.pop(name).to(param)))

    @torch.no_grad()
    def settle_(self, names: Collection[str]) -> None:
        """Put the values of all pruned weights away, of whatever optimizer, and zero them."""
        for name in self._zeros.alive:
            if name not in self._values:
                self._values[name] = self._zeros.params[name].detach().clone()
                self._zeros.hold_(name)
            elif name in names:  # something else, such as load_state_dict, may have written to them since
                self._zeros.hold_(name)

    @contextmanager
    def in_sight(self) -> Iterator[None]:
        """The dark values in sight for a while: in other memory, so that the model's own stays as it is."""
        params = self._zeros.params
        held = {name: params[name].data for name in self._values}
        try:
            for name, data in held.items():
                params[name].data = torch.where(self._zeros.mask(name), data, self._values[name].to(data))
            yield
        finally:
            for name, data in held.items():
                params[name].data = data

    def light_(self) -> None:
        """Give all pruned weights their dark values."""
        self.ready_(list(self._values))

    def remask_(self, masks: Mapping[str, Tensor]) -> None:
        """Go on with other masks: what they prune learns on in the dark, what they bring back has its dark value."""
        self.light_()
        self._zeros.put_(masks)

    def end_(self) -> None:
        """Hold hard zeros from now on; what was dark is dropped."""
        self._values = {}
        self._zeros.hard = True

    def state_dict(self) -> dict[str, Any]:
        """The dark values."""
        return dict(self._values)

    def load_state_dict(self, values: Mapping[str, Tensor]) -> None:
        """Go on from saved dark values."""
        self._values = copied(values)
