"""Bytes, tensors and ways to damage them."""

import gguf
import ml_dtypes
import numpy as np

# The worked example of the format's description: one float32 tensor `w`, as the newest writer of model type `t` has it.
EXAMPLE = bytes.fromhex(
    "415052000200000401000000400000000000000067000000C000000000000000"
    "00010000000000000B3A33640000000000000000000000000000000000000000"
    "7B226D6F64656C5F74797065223A2274222C226C6963656E7365223A6E756C6C"
    "2C22646174615F736F75726365223A6E756C6C2C22646174615F6C6963656E73"
    "65223A6E756C6C2C22746F74616C5F73697A65223A302C22706172616D5F636F"
    "756E74223A307D00000000000000000000000000000000000000000000000000"
    "0100770002020000000000000002000000000000000000000000000000100000"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "0000803F000000C00000003F0000404000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000"
    "DD2C9963"
)


def some_tensors():
    """A little of everything: dtypes, a scalar, an empty tensor, NaN with a payload, -0.0, a name to escape."""
    odd = np.array([0x7FC00001, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32)
    return {
        "model.layers.0.q.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        "odd": odd,
        "half": np.array([[1.5, -65504.0]], np.float16),
        "brain": np.array([1.0, 3.140625, -2.0], ml_dtypes.bfloat16),
        "scalar": np.array(3.0, np.float64),
        "empty": np.zeros((0, 5), np.float32),
        "count": np.array([1, -(2**62)], np.int64),
        "bytes": np.array([0, 255], np.uint8),
        "naïve/名前 \n": np.ones(2, np.float32),
    }


def bits(array):
    """The bytes of an array, so that NaN equals NaN and 0.0 is not -0.0."""
    return np.ascontiguousarray(array).tobytes()


def same(checkpoint, tensors):
    """Whether a checkpoint holds exactly these tensors, bit for bit and in their dtypes."""
    assert set(checkpoint) == set(tensors)
    for name, array in tensors.items():
        held = checkpoint[name]
        assert (held.dtype, held.shape, bits(held)) == (array.dtype, array.shape, bits(array)), name
    return True


def gguf_types(path):
    """The type of every key of a GGUF file, as the library reads it."""
    fields = gguf.GGUFReader(path).fields
    return {key: [kind.name for kind in field.types] for key, field in fields.items() if not key.startswith("GGUF.")}
