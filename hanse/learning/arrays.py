"""The array types of the mathematics, named once.

Rows are the first axis everywhere: `n` rows, `F` features, `K` outputs (classes, or one).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]
# Packed bin ids: bin + 1, and 0 for a missing value; 8 or 16 bits.
BinIds = NDArray[np.uint8] | NDArray[np.uint16]

FLOAT32_MAX = np.float32(np.finfo(np.float32).max)
