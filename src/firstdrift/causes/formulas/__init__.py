"""What the common operations of neural networks compute: plain numpy, in float64.

These are definitions to recompute with, not fast kernels. Tensors are laid out as in torch: batch, channels, then
space; weights of a linear map (out, in), of a convolution (out, in/groups, *kernel).
"""

from .activations import ACTIVATIONS, activation, erf
from .backward import (
    avg_pool_gradient,
    bins,
    bins_gradient,
    conv_input_gradient,
    conv_weight_gradient,
    max_pool_gradient,
    through_norm,
)
from .dense import conv, conv_transpose, linear
from .normalisation import batch_norm, group_norm, instance_norm, layer_norm, normalised, rms_norm
from .pools import adaptive_avg_pool, avg_pool, max_pool, pool_divisor
from .recurrence import Cell, gru, gru_step, lstm, lstm_step, recur, rnn, rnn_step
from .resize import interpolate
from .slopes import SLOPES, between, softmax, softmax_backward
from .windows import PAD_MODES, Axis, output_size, pad

__all__ = [
    "ACTIVATIONS", "PAD_MODES", "SLOPES", "Axis", "Cell", "activation", "adaptive_avg_pool", "avg_pool",
    "avg_pool_gradient", "batch_norm", "between", "bins", "bins_gradient", "conv", "conv_input_gradient",
    "conv_transpose", "conv_weight_gradient", "erf", "group_norm", "gru", "gru_step", "instance_norm",
    "interpolate", "layer_norm", "linear", "lstm", "lstm_step", "max_pool", "max_pool_gradient", "normalised",
    "output_size", "pad", "pool_divisor", "recur", "rms_norm", "rnn", "rnn_step", "softmax", "softmax_backward",
    "through_norm",
]  # fmt: skip
