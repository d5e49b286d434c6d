"""Convert values of 1 bit, of more than 8 bits and floats to the 8 bits of a network input."""

import warnings

import numpy as np

from detlite.files.errors import DataError

from .pixels import ImageOptions


def to_8_bits(array: np.ndarray, options: ImageOptions, name: str) -> np.ndarray:
    """Convert stored values of any type to uint8, see `ImageOptions`. Raises DataError."""
    if array.dtype == np.bool_:
        return array * np.uint8(255)
    if array.dtype.kind not in "uif" or not array.size:
        kind = f"pixels of the type {array.dtype}" if array.size else "no pixels"
        raise DataError(f"{name}: has {kind}. Convert the image to integers or floats")
    if options.value_range:
        low, high = np.array(options.value_range, np.float32).reshape(-1, 2).T
        values = (array.astype(np.float32) - low) * (256 / (high - low))
        return np.nan_to_num(values, nan=0.0).clip(0, 255).astype(np.uint8)
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" or low < 0 or high > 0xFFFF:
        kind = "float" if array.dtype.kind == "f" else f"{8 * array.dtype.itemsize}-bit"
        raise DataError(
            f"{name}: a {kind} image with values from {low:g} to {high:g} has no 8-bit form. Set "
            "INPUT.VALUE_RANGE to the values that become black and white (`detlite init` measures "
            "them), or convert the image"
        )
    bits, problem = int(high).bit_length(), ""
    if bits > options.bits:
        problem = f"has values above the {options.bits} bits of INPUT.IMAGE_BITS (now white)"
    elif options.bits == 16 and 0 < bits < 15:
        problem = f"uses {bits} bits only, so its high byte is nearly black"
    if problem:  # `warnings` shows each text once per process
        advice = f"If other images do too, set INPUT.IMAGE_BITS {max(bits, 8)}"
        warnings.warn(f"a 16-bit image {problem}. {advice}", stacklevel=2)
    return (array >> (options.bits - 8)).clip(max=255).astype(np.uint8)
