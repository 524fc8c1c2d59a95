"""Calls are found out on tensors without numbers; what cannot be found out there is refused, not guessed."""

import pytest
import torch

from firstdrift.program.building.call_templates import template_of
from firstdrift.program.calls import Type
from firstdrift.program.interpreter import NotReplayableError

SQUARE = [Type("f32", (3, 3))]


def test_a_function_that_writes_into_a_part_and_reads_the_whole_is_refused():
    def partly(given):
        whole = given[0].detach().clone()
        whole[0].zero_()
        return whole * 2

    with pytest.raises(NotReplayableError, match="a tensor that no call made"):
        template_of(partly, SQUARE)


def test_a_function_that_reads_a_number_out_of_a_tensor_is_refused():
    with pytest.raises(NotReplayableError):
        template_of(lambda given: given[0] * float(given[0].sum()), SQUARE)


def test_a_constant_that_no_call_made_is_refused():
    table = torch.ones(3, 3)
    with pytest.raises(NotReplayableError):
        template_of(lambda given: given[0] + table, SQUARE)


def test_a_function_of_endless_calls_is_refused():
    def endless(given):
        x = given[0]
        while True:
            x = x + 1

    with pytest.raises(NotReplayableError, match="more than 20000 calls"):
        template_of(endless, SQUARE)


def test_a_template_holds_the_calls_and_those_of_the_derivative():
    template = template_of(lambda given: given[0] * 2, SQUARE)
    assert [call.op for call in template.calls] == ["aten.mul.Tensor", "aten.mul.Tensor"]
    assert template.forward == 1
