"""Every operation of the library is torch's own, forward and backward, and refuses what it is not."""

import numpy as np
import pytest
import torch
from tests.program.operation_cases import ALL, CASES, TAUGHT
from tests.program.written import OUT, numbers, recorded

from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter, operation
from firstdrift.program.library import library_program
from firstdrift.program.operations.known_operations import OPERATIONS, named


def write(case, path, **how):
    op, inputs, weights, attrs, reference = case
    return recorded(path, inputs, weights, op, attrs, reference, **how)


def test_every_operation_of_the_table_has_a_case():
    assert {one.names[0] for one in OPERATIONS} == CASES.keys() | TAUGHT
    assert all(named(name) is not None for one in OPERATIONS for name in one.names)


@pytest.mark.parametrize("name", ALL)
def test_its_calls_give_torchs_numbers_in_float64(name, tmp_path):
    trace = write(ALL[name], tmp_path / "t")
    program = library_program(trace)
    step = program.steps[0]
    computed = [record.site for record in trace if record.site == OUT or record.site.phase == "grad"]
    computed += [record.site for record in trace if record.site.phase == "agrad" and record.site.name != "y"]
    for site in computed:
        cut = Cuts(step, lambda other: True).at(site)
        assert cut is not None, program.why_not(site)
        made = Interpreter(step, trace, exact=True).array_of(cut)
        expected = trace.array(site).astype(np.float64)
        size = np.abs(expected).max(initial=1e-300)
        assert np.abs(made - expected).max(initial=0) <= 1e-12 * max(1.0, size), site
        assert program.why_not(site) is None


@pytest.mark.parametrize("name", ALL)
def test_a_run_in_float32_is_reproduced(name, tmp_path):
    trace = write(ALL[name], tmp_path / "t", dtype=torch.float32)
    program = library_program(trace)
    assert program.why_not(OUT) is None
    gradients = [record.site for record in trace if record.site.phase in ("agrad", "grad") and record.site.name != "y"]
    assert {site: program.why_not(site) for site in gradients} == dict.fromkeys(gradients)


WRONG = [
    ("LayerNorm", {"eps": 1e-2}), ("RMSNorm", {"eps": 1e-5}), ("BatchNorm1d", {"eps": 1e-2}),
    ("GroupNorm", {"num_groups": 4, "eps": 1e-3}), ("GELU", {"approximate": "none"}), ("GELU", {}),
    ("LeakyReLU", {"negative_slope": 0.21}), ("ELU", {"alpha": 0.71}), ("Softmax", {"dim": 2}), ("Concat", {"dim": 0}),
    ("Conv1d", {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 1}),
    ("Conv1d", {"stride": [2, 1], "padding": [0, 1], "dilation": [1, 2], "groups": 2}),
    ("Transpose", {"perm": [0, 3, 2, 1]}), ("Select", {"dim": 1, "index": 1}), ("Hardtanh", {}),
    ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": True}),
    ("MaxPool1d", {"kernel_size": [2, 2], "stride": [2, 2], "padding": [1, 0], "ceil_mode": True}),
    ("ScaledDotProductAttention", {"is_causal": False}),
    ("ScaledDotProductAttention", {"is_causal": True, "scale": 0.51}),
    ("RoPE", {"theta": 1e4, "position": 3}), ("RoPE", {"theta": 1.1e4, "position": 3}),
    ("AttentionScores", {"scale": 0.2}),
    ("CausalSoftmax", {"softcap": 1.5, "window": 4}), ("CausalSoftmax", {"window": 3}),
    ("Heads", {"heads": 3, "head_dim": 4, "start": 4, "eps": 1e-3}), ("AttentionMix", {"kv_heads": 1, "head_dim": 3}),
    ("Router", {"per_token": 2, "normalised": False}), ("Experts", {"activation": "gelu"}), ("AddNorm", {"eps": 1e-3}),
    ("CrossEntropyLoss", {"reduction": "mean"}), ("MSELoss", {}), ("Gemm", {"alpha": 0.5}),
    ("LSTM", {"hidden_size": 5, "num_layers": 1, "bidirectional": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attrs"), WRONG)
def test_other_settings_than_those_computed_with_do_not_hold(name, attrs, tmp_path):
    trace = write(ALL[name], tmp_path / "t", dtype=torch.float32, changed=attrs)
    program = library_program(trace)
    assert program.why_not(OUT) is not None
    assert program.find(OUT) is None


ABSURD = [
    ("LayerNorm", {"eps": "nan"}, "eps is nan, which is no finite number"),
    ("LayerNorm", {"eps": [1]}, "eps is [1], which is no finite number"),
    ("RMSNorm", {}, "eps was not recorded"),
    ("GELU", {"approximate": "sort of"}, "approximate"),
    ("Heads", {"heads": 0, "head_dim": 4}, ""),
    ("Heads", {"heads": 2**39, "head_dim": 2**39}, ""),
    ("AttentionMix", {"kv_heads": 0, "head_dim": 4}, ""),
    ("Conv1d", {"stride": [-2, 1]}, ""),
    ("Conv1d", {"stride": [0, 0]}, ""),
    ("Conv1d", {"padding": [2**38, 0], "stride": 1}, ""),
    ("Conv1d", {"groups": -1}, ""),
    ("Conv1d", {"dilation": "wide"}, "dilation is 'wide', which is no size or list of sizes"),
    ("MaxPool1d", {"kernel_size": 0}, ""),
    ("GroupNorm", {"num_groups": 0}, ""),
    ("GroupNorm", {"num_groups": True}, "num_groups is True, which is no whole number"),
    ("RoPE", {"theta": 0}, ""),
    ("RoPE", {"theta": -1e4}, ""),
    ("RoPE", {"theta": 1e4, "scaling": "yarn"}, "scaling is 'yarn'"),
    ("RoPE", {"theta": 1e4, "position": 2**39}, ""),
    ("RoPE", {"theta": 1e4, "divisors": []}, ""),
    ("LSTM", {"hidden_size": 5, "num_layers": 2**39}, ""),
    ("Concat", {"dim": 99}, ""),
    ("Transpose", {"perm": [0, 0, 1, 2]}, ""),
    ("Router", {"per_token": 2**30, "normalised": True}, ""),
]


@pytest.mark.parametrize(("name", "attrs", "said"), ABSURD)
def test_absurd_settings_are_a_sentence(name, attrs, said, tmp_path):
    trace = write(ALL[name], tmp_path / "t", dtype=torch.float32, changed=attrs)
    why = library_program(trace).why_not(OUT)
    assert why is not None
    assert said in why
    assert "\n" not in why


def test_its_calls_are_on_the_list_of_those_that_are_run_from_a_file(tmp_path):
    for number, case in enumerate(ALL.values()):
        step = library_program(write(case, tmp_path / str(number))).steps[0]
        assert step.notes[0] == "operations from the library"
        for _, call in step.calls():
            operation(call.op)


def test_a_weight_that_was_not_recorded_is_named(tmp_path):
    trace = recorded(tmp_path / "t", [numbers(4, 6)], {}, "Linear", {}, lambda x: x @ numbers(6, 3))
    assert library_program(trace).why_not(OUT) == "no weight of it was recorded"


def test_a_default_that_somebody_chose_is_noted(tmp_path):
    op, inputs, weights, _, _ = ALL["LayerNorm"]
    layer_norm = torch.nn.functional.layer_norm
    trace = recorded(tmp_path / "t", inputs, weights, op, {}, lambda x, weight, bias: layer_norm(x, (6,), weight, bias))
    program = library_program(trace)
    assert program.why_not(OUT) is None
    assert "LayerNorm: not recorded, so that its defaults were taken: eps 1e-05" in program.steps[0].notes
