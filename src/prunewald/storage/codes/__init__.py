"""Entropy codes: a sequence of symbols, which are small numbers, as bytes."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
