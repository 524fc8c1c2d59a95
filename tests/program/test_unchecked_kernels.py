"""A changed program calls no kernel that trusts its arguments with shapes that it was not recorded with."""

import numpy as np
import pytest

from firstdrift.program.calls import Call, NotReplayableError, Ref
from firstdrift.program.running.changed_calls import refuse_unfit

FUSED = "aten._scaled_dot_product_flash_attention_for_cpu.default"
Q, K, V, MASK = (Ref(number) for number in range(4))
RECORDED = {Q: np.zeros((2, 4, 10, 8)), K: np.zeros((2, 4, 6, 8)), V: np.zeros((2, 4, 6, 8))}
CALL = Call(FUSED, (Q, K, V, 0.0, False), {}, ())


def asked(call, shapes, recorded=CALL):
    refuse_unfit(call, lambda ref: np.zeros(shapes[ref]) if ref in shapes else RECORDED[ref], recorded, RECORDED.get)


def test_the_recorded_shapes_are_run():
    asked(CALL, {})


@pytest.mark.parametrize("shape", [(2, 6, 4, 8), (2, 4, 8, 6), (2, 4, 6, 4), (4, 6, 8)])
def test_a_key_of_another_shape_is_refused(shape):
    """Torch's fused attention divides by what it finds there, and ends the process."""
    with pytest.raises(NotReplayableError, match="checks nothing"):
        asked(CALL, {K: shape})


@pytest.mark.parametrize(
    ("shape", "fits"), [((10, 6), True), ((2, 1, 10, 6), True), ((6, 10), False), ((11, 6), False)]
)
def test_a_mask_is_added_if_it_fits_the_scores(shape, fits):
    call = Call(FUSED, CALL.args, {"attn_mask": MASK}, ())
    if fits:
        asked(call, {MASK: shape})
    else:
        with pytest.raises(NotReplayableError):
            asked(call, {MASK: shape})


def test_such_a_kernel_is_not_called_where_it_was_not():
    with pytest.raises(NotReplayableError, match="was not called here"):
        asked(CALL, {}, Call("aten.mm.default", (Q, K), {}, ()))


def test_what_checks_its_arguments_may_be_given_any():
    asked(Call("aten.mm.default", (Q, K), {}, ()), {K: (3, 3)})
