"""The vocabulary is complete, and says something of every label."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import firstdrift
from firstdrift.explain.labels import LABELS, link, nearest

PACKAGE = Path(firstdrift.__file__).parent
FIXED = [
    "none", "float-noise", "ill-conditioned", "decision-flip", "layout-equivalent", "scale", "channel-scale",
    "missing-bias", "double-bias", "clamp", "softcap", "activation-variant", "swapped-operands", "missing-term",
    "missing-residual", "residual-source", "op-order", "transpose", "head-permutation", "qkv-order", "gqa-order",
    "conv-layout", "conv-flip", "concat-order", "swapped-halves", "interleave", "gate-order", "gate-formula",
    "wrong-weight", "weight-swap", "untied-head", "index-shift", "quantisation", "norm-eps", "norm-eps-placement",
    "norm-plus-one", "rms-vs-layernorm", "norm-axis", "norm-missing", "batchnorm-mode", "batchnorm-momentum",
    "batchnorm-unbiased", "rope-interleave", "rope-theta", "rope-scaling", "rope-partial", "rope-precision",
    "position-shift", "frequency-table", "alibi-slope", "attention-scale", "mask-off-by-one", "mask-missing",
    "window-off-by-one", "padding", "pool-count-pad", "interpolation", "router-renorm", "dtype-rounding",
    "overflow", "nan-origin", "dropout-active", "stale-buffer", "different-input", "reduction-scale",
    "loss-formula", "label-shift", "gradient-scale", "gradient-formula", "gradient-missing", "tied-gradient",
    "clip-norm", "optimizer-eps", "optimizer-bias-correction", "optimizer-momentum", "optimizer-lr",
    "weight-decay-norms", "weight-decay-coupling", "offset", "permutation", "axis-order", "skipped-op",
    "uninitialised", "nondeterministic", "accumulator-precision", "zero-point", "rounding-mode", "pool-mode",
    "replica-divergence", "missing-reduce", "other-setting", "call-count", "reference-suspect", "changed-call",
    "unknown",
]  # fmt: skip


def test_the_labels_are_the_fixed_ones_in_their_order():
    assert list(LABELS) == FIXED


@pytest.mark.parametrize("name", FIXED)
def test_every_label_is_explained_in_whole_sentences(name):
    label = LABELS[name]
    assert label.meaning
    assert label.meaning[-1] != "."
    for text in (label.recognised, label.confirm):
        assert re.fullmatch(r"[A-Z].*\.", text), text
        assert "  " not in text


@pytest.mark.parametrize("case", [case for label in LABELS.values() for case in label.cases])
def test_every_case_leads_to_an_issue(case):
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+: .+", case)
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", link(case))


@pytest.mark.parametrize(
    ("specific", "generic"),
    [  # pairs that can explain the same numbers with as many of them fitted
        ("missing-bias", "missing-term"),
        ("missing-residual", "missing-term"),
        ("weight-decay-norms", "missing-term"),
        ("weight-decay-norms", "weight-decay-coupling"),
        ("tied-gradient", "missing-term"),
        ("norm-missing", "skipped-op"),
        ("norm-plus-one", "offset"),
        ("norm-plus-one", "zero-point"),
        ("gqa-order", "head-permutation"),
        ("gqa-order", "qkv-order"),
        ("rope-interleave", "interleave"),
        ("interleave", "head-permutation"),
        ("gate-order", "qkv-order"),
        ("concat-order", "swapped-halves"),
        ("conv-layout", "transpose"),
        ("transpose", "head-permutation"),
        ("transpose", "axis-order"),
        ("conv-flip", "permutation"),
        ("reduction-scale", "loss-formula"),
        ("reduction-scale", "gradient-scale"),
        ("gradient-scale", "scale"),
        ("gradient-formula", "scale"),
        ("clip-norm", "gradient-scale"),
        ("optimizer-lr", "scale"),
        ("batchnorm-momentum", "scale"),
        ("attention-scale", "scale"),
        ("position-shift", "index-shift"),
        ("frequency-table", "interleave"),
        ("weight-swap", "swapped-operands"),
        ("untied-head", "wrong-weight"),
        ("overflow", "nan-origin"),
        ("dropout-active", "uninitialised"),
        ("accumulator-precision", "dtype-rounding"),
        ("zero-point", "quantisation"),
    ],
)
def test_of_two_labels_for_the_same_numbers_the_one_that_says_more_is_given(specific, generic):
    if (specific, generic) == ("norm-plus-one", "zero-point"):  # one fitted number fewer decides
        assert LABELS[specific].specificity >= LABELS[generic].specificity
    else:
        assert LABELS[specific].specificity > LABELS[generic].specificity


def test_no_hypothesis_uses_a_label_that_does_not_exist():
    for file in (PACKAGE / "causes").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and node.args:
                first = node.args[0]
                assert not isinstance(first, ast.Constant) or first.value in LABELS, (
                    f"{file.name}: {ast.unparse(first)}"
                )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("gqa_order", "gqa-order"),
        ("Norm Eps", "norm-eps"),
        ("rope", "rope-theta"),
        ("label-shfit", "label-shift"),
        ("zzz", None),
    ],
)
def test_a_name_that_is_nearly_right_finds_its_label(said, meant):
    assert (meant in nearest(said)) if meant else nearest(said) == []


def test_the_texts_are_part_of_the_package():
    assert resources.files("firstdrift.explain").joinpath("labels.toml").is_file()
    assert '"explain/*.toml"' in (PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8")


def test_importing_the_labels_reads_nothing():
    code = (
        "from firstdrift.explain.labels import LABELS\nassert '_labels' not in vars(LABELS)\n"
        "len(LABELS)\nassert '_labels' in vars(LABELS)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
