"""What is left after a pruning, fitted by least squares to what the dense layer gave: no gradient step.

`call.py` is the call, `whole.py` a refit from beginning to end, `walking.py` the way through a model layer by layer.
On this way `seeing.py` sees what each weight multiplies, `order.py` what comes after what, `sums.py` sums it up into
Gram matrices, and `solving.py` solves.
"""

from prunewald.refitting.call import refit

__all__ = ["refit"]
