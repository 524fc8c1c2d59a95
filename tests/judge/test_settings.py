"""Settings are data: what both sides state, and not alike, is told, and asked of the program."""

import json

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.judge.measure.stated import are_alike
from firstdrift.report.text import render

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Scaled(nn.Module):
    """A module of one's own, whose setting the library does not know."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.tag = factor, "a"

    def forward(self, x):
        return x * self.factor


def network(eps=1e-5, approximate="none", factor=1.5):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32, eps=eps), nn.GELU(approximate), Scaled(factor), nn.Linear(32, 8)
    )


def run(path, model, program=False, **settings):
    """One step of a model, recorded."""
    torch.manual_seed(1)
    x, y = torch.randn(4, 16), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **settings})
    with fd.trace(model, path, optimizer=optimizer, program=program):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    return path


def stating(path, line=lambda line: None, header=lambda header: None):
    """A trace that says something else of the same numbers."""
    lines = [json.loads(text) for text in (path / "index.jsonl").read_text().splitlines()]
    for one in lines:
        line(one)
    (path / "index.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    said = json.loads((path / "trace.json").read_text())
    header(said)
    (path / "trace.json").write_text(json.dumps(said))
    return path


def of(op, **attrs):
    """A change of what the lines of an operation state."""

    def line(one):
        if one.get("op") == op:
            one["attrs"].update(attrs)

    return line


@pytest.fixture(params=[False, True], ids=["by the library", "by the program"])
def program(request):
    return request.param


def only(result):
    (found,) = result.settings
    return found


def test_another_setting_is_a_drift_although_its_effect_is_below_noise(tmp_path, program):
    ours = run(tmp_path / "a", network(), program)
    result = fd.diff(ours, run(tmp_path / "b", network(eps=1.00001e-5), program))
    assert result.exit_code == 1
    assert (result.first_drift.name, result.cause or result.first_drift.cause.label) == ("1", "norm-eps")
    assert str(only(result).effect) == "changes"


def test_it_is_a_drift_where_every_pair_is_bit_equal(tmp_path):
    ours = run(tmp_path / "a", network())
    theirs = stating(run(tmp_path / "b", network()), of("LayerNorm", eps=1.0000005e-5))
    result = fd.diff(ours, theirs)
    assert result.exit_code == 1
    assert {str(pair.verdict) for pair in result.pairs} == {"same", "drift"}


def test_a_statement_that_the_numbers_contradict_is_a_note(tmp_path, program):
    ours = run(tmp_path / "a", network(), program)
    theirs = stating(run(tmp_path / "b", network(), program), of("GELU", approximate="tanh"))
    result = fd.diff(ours, theirs)
    assert result.exit_code == 0
    assert str(only(result).effect) == "contradicted"
    assert "approximate of 2: tanh instead of none, but its numbers" in " ".join(render(result).split())


def test_a_setting_that_nothing_reads_is_a_note(tmp_path, program):
    ours = run(tmp_path / "a", network(), program)
    theirs = stating(run(tmp_path / "b", network(), program), of("Scaled", tag="b"))
    result = fd.diff(ours, theirs)
    assert result.exit_code == 0
    assert str(only(result).effect) == "unread"


def test_a_constant_of_a_module_of_ones_own_is_found_among_its_calls(tmp_path):
    ours = run(tmp_path / "a", network(), program=True)
    theirs = run(tmp_path / "b", network(factor=1.5 * (1 + 1e-6)), program=True)
    result = fd.diff(ours, theirs)
    assert result.exit_code == 1
    assert (only(result).key, str(only(result).effect)) == ("factor", "changes")


def test_without_a_program_a_known_argument_leaves_it_open(tmp_path):
    for name, eps in (("a", 1e-5), ("b", 1e-6)):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("norm", "fwd", np.ones((2, 4), np.float32) * 3, op="RMSNorm", attrs={"eps": eps})
    result = fd.diff(tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, str(only(result).effect)) == (2, "unknown")


@pytest.mark.parametrize(("key", "values", "code"), [
    ("rms_norm_eps", (1e-5, 1e-6), 2), ("rope_theta", (1e4, 1e6), 2), ("hidden_act", ("silu", "gelu"), 2),
    ("bos_token_id", (1, 2), 0), ("attn_implementation", ("sdpa", "eager"), 0),
])  # fmt: skip
def test_configs_in_headers_are_compared(tmp_path, key, values, code):
    for name, value in zip("ab", values, strict=True):
        with fd.Writer(tmp_path / name, config={key: value}) as writer:
            writer.put("head", "fwd", np.ones((2, 4), np.float32) * 3)
    result = fd.diff(tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, only(result).key) == (code, key)


def test_an_optimizers_setting_is_asked_of_its_rule(tmp_path):
    ours = run(tmp_path / "a", network())
    result = fd.diff(ours, run(tmp_path / "b", network(), eps=1.001e-8))
    assert result.exit_code == 1
    assert result.first_drift.cause.label == "optimizer-eps"
    assert (result.first_drift.phase, only(result).where) == ("weight_after", "optimizer")


def test_another_kernel_of_the_optimizer_is_a_note(tmp_path):
    ours = run(tmp_path / "a", network())
    theirs = run(tmp_path / "b", network(), foreach=True)
    result = fd.diff(ours, stating(theirs, header=lambda said: said["optimizer"]["groups"][0].update(fused=True)))
    assert result.exit_code == 0


def test_a_map_says_that_a_difference_is_meant(tmp_path):
    ours, theirs = run(tmp_path / "a", network()), run(tmp_path / "b", network(eps=1.00001e-5))
    result = fd.diff(ours, theirs, map={"meant": {"1.eps": "the checkpoint says so"}})
    assert (result.exit_code, str(only(result).effect)) == (0, "meant")
    with pytest.raises(fd.FirstdriftError, match="meant is 3, which is no reason"):
        fd.diff(ours, theirs, map={"meant": {"1.eps": 3}})


def test_settings_stand_at_the_top_and_in_json(tmp_path):
    ours, theirs = run(tmp_path / "a", network()), run(tmp_path / "b", network(eps=1e-6))
    result = fd.diff(ours, theirs)
    text = render(result)
    assert text.index("eps of 1: 1e-06 instead of 1e-05") < text.index("first drift    ")
    (told,) = result.to_json()["settings"]
    assert (told["where"], told["key"], told["reference"], told["candidate"]) == ("1", "eps", 1e-5, 1e-6)


def test_what_is_not_stated_is_the_operations_default(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    for name, attrs in (("a", {"eps": 1e-5, "axes": 1}), ("b", {"axes": 1}), ("c", {"axes": 1, "epsilon": 2e-5})):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("norm", "fwd", x, port="in.0")
            writer.put("norm", "fwd", y, op="LayerNorm", attrs=attrs)
    assert not fd.diff(tmp_path / "a", tmp_path / "b").settings
    assert only(fd.diff(tmp_path / "a", tmp_path / "c")).key == "eps"
    assert str(only(fd.diff(tmp_path / "b", tmp_path / "c")).effect) == "contradicted"


@pytest.mark.parametrize(("ours", "theirs", "alike"), [
    (1e-5, float(np.float32(1e-5)), True), (1e-5, 1.001e-5, False), (3, [3, 3], True), ([3, 3], [3, 1], False),
    (True, 1, True), ("none", "tanh", False), (1e39, 1e40, False), ([], 3, False), ("a", 1, False),
])  # fmt: skip
def test_numbers_are_alike_if_float32_holds_them_as_one(ours, theirs, alike):
    assert are_alike(ours, theirs) is alike


def test_check_tells_of_settings_too():
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    result = fd.check(reference=network(), candidate=network(eps=1.00001e-5), inputs=(x,))
    assert result.exit_code == 1
    assert only(result).key == "eps"
    assert not fd.check(reference=network(), candidate=network(), inputs=(x,)).settings


class TanhGELU(nn.Module):
    """A GELU of one's own, which states nothing of its form."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def test_a_module_of_ones_own_states_nothing_by_its_silence(tmp_path):
    """Its name ends as the operation's; it computes what the reference states, to the digits of bfloat16."""
    for name, activation in (("a", nn.GELU("tanh")), ("b", TanhGELU())):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), activation, nn.Linear(32, 8)).bfloat16()
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(torch.randn(4, 16).bfloat16())
    result = fd.diff(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 0, result.sentence
    assert not result.settings


@pytest.mark.parametrize(("eps", "stated"), [(1e-12, 0), (1e-5, 1)])
def test_a_setting_under_another_engine_s_name_is_the_same_setting(tmp_path, eps, stated):
    array = np.ones((2, 4), np.float32)
    for name, attrs in ("reference", {"epsilon": 1e-12}), ("candidate", {"eps": eps}):
        with fd.Writer(tmp_path / name) as writer:
            writer.put("norm", "fwd", array, op="LayerNorm", attrs=attrs)
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate", explain=False)
    assert [setting.key for setting in result.settings] == ["eps"] * stated
