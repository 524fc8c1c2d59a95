"""Kernels of one kind of device, and the functions that say the same on any: what such a call reads then.

A kernel that `running/opened.py` knows is opened from its own arguments. Any other is run as the function that the
model called, where that is one of FUNCTIONS: from what the function was given.
"""

from __future__ import annotations

from ..calls import Call, Function, Node, Ref, Step, reads, refs

_KERNELS = (
    "_cudnn_", "_efficient_attention", "_flash_attention", "_lstm_mps", "_mps_", "_scaled_dot_product_", "_thnn_",
    "_triton_", "cudnn_", "miopen_", "mps_",
)  # fmt: skip
FUNCTIONS = frozenset({
    "torch.nn.functional.scaled_dot_product_attention", "torch.nn.functional.grid_sample", "torch.grid_sampler",
    "torch.nn.functional.ctc_loss", "torch.nn.functional.layer_norm", "torch.nn.functional.rms_norm",
    "torch.nn.functional.batch_norm", "torch.nn.functional.group_norm", "torch.lstm_cell", "torch.gru_cell",
    "torch.conv1d", "torch.conv2d", "torch.conv3d", "torch.conv_transpose1d", "torch.conv_transpose2d",
    "torch.conv_transpose3d", "torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu",
})  # fmt: skip


def function_behind(step: Step, number: int) -> Function | None:
    """The function to run in the place of a call: the call is a device's own, and gave what the function gave."""
    call = step.nodes[number]
    if not isinstance(call, Call) or not call.op.split(".")[1].startswith(_KERNELS):
        return None
    function = step.function_of.get(number)
    made = function is not None and any(ref.node == number for ref in function.results)
    return function if function is not None and made and function.op in FUNCTIONS else None


def needs(step: Step, number: int) -> tuple[Ref, ...]:
    """What a node is computed from: what it reads, random numbers that it drew, and what its function was given."""
    if number not in step.needed:
        step.needed[number] = _needs(step, number)
    return step.needed[number]


def _needs(step: Step, number: int) -> tuple[Ref, ...]:
    node: Node = step.nodes[number]
    drawn = [Ref(leaf) for leaf in (node.drawn or {}).values()] if isinstance(node, Call) else []
    function = function_behind(step, number)
    given = [] if function is None else [ref for ref in refs((function.args, function.kwargs)) if ref.node < number]
    return (*reads(node), *drawn, *given)
