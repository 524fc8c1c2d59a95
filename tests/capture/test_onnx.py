"""ONNX models as ONNX Runtime runs them: one call, every tensor under its module's name."""

import re
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.capture.engine_conformance import EngineConformance  # noqa: E402

import firstdrift as fd  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 5, 8)).astype(np.float32)


def weight(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def parameters():
    held = {}
    for block in ("blocks.0", "blocks.1"):
        held[f"{block}.ln.weight"], held[f"{block}.ln.bias"] = 1 + weight(8) / 8, weight(8)
        held[f"{block}.fc1.weight"], held[f"{block}.fc1.bias"] = weight(8, 16), weight(16)
        held[f"{block}.fc2.weight"], held[f"{block}.fc2.bias"] = weight(16, 8), weight(8)
    held["head.weight"] = weight(8, 3)
    return held


WEIGHTS = parameters()


def network(eps=1e-3, anonymous=False, weights=WEIGHTS):
    """The network as torch's exporter names it; `anonymous`: products' weights by number, as it has them, too."""
    nodes, stored, x = [], {}, "x"

    def node(op, name, inputs, **attributes):
        path = "/" + re.sub(r"(?<=[0-9])\.", "/", name)  # "/blocks.0/fc1"
        nodes.append(helper.make_node(op, inputs, [f"{path}/{op}_output_0"], f"{path}/{op}", **attributes))
        return f"{path}/{op}_output_0"

    def held(name):
        said = f"onnx::MatMul_{len(stored)}" if anonymous and weights[name].ndim == 2 else name
        stored[said] = weights[name]
        return said

    for block in ("blocks.0", "blocks.1"):
        h = node(
            "LayerNormalization", f"{block}.ln", [x, held(f"{block}.ln.weight"), held(f"{block}.ln.bias")], epsilon=eps
        )
        for part in ("fc1", "fc2"):
            h = node("MatMul", f"{block}.{part}", [h, held(f"{block}.{part}.weight")])
            h = node("Add", f"{block}.{part}", [held(f"{block}.{part}.bias"), h])
            h = node("Gelu", f"{block}.act", [h]) if part == "fc1" else h
        x = node("Add", block, [x, h])
    nodes.append(helper.make_node("MatMul", [x, held("head.weight")], ["logits"], "/head/MatMul"))
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5, 3])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


class TestConformance(EngineConformance):
    modules = (
        "blocks.0.ln", "blocks.0.fc1", "blocks.0.act", "blocks.0.fc2", "blocks.0", "blocks.1.ln", "blocks.1.fc1",
        "blocks.1.act", "blocks.1.fc2", "blocks.1", "head", "",
    )  # fmt: skip
    operations: ClassVar = {
        "blocks.0.ln": "LayerNormalization",
        "blocks.1.act": "Gelu",
        "blocks.0.fc1/MatMul": "MatMul",
    }
    settings: ClassVar = {"blocks.0.ln": {"epsilon": 1e-3}, "blocks.0.act": {"approximate": "none"}}
    weights = WEIGHTS

    @classmethod
    def record(cls, path, **options):
        return fd.trace(network(), path, inputs={"x": X}, **options)

    @classmethod
    def run(cls):
        session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": X})[0]


def names_of(trace, phase="fwd"):
    return {record.site.name for record in trace if record.site.phase == phase}


@pytest.mark.parametrize("given", ["path", "text", "bytes", "model", "session"])
def test_a_model_is_given_in_any_of_its_forms(given, tmp_path):
    model = network()
    onnx.save(model, tmp_path / "net.onnx")
    forms = {
        "path": tmp_path / "net.onnx", "text": str(tmp_path / "net.onnx"), "bytes": model.SerializeToString(),
        "model": model, "session": ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"]),
    }  # fmt: skip
    trace = fd.trace(forms[given], tmp_path / "trace", inputs=(X,))
    assert fd.diff(trace.path, fd.trace(model, tmp_path / "other", inputs={"x": X}).path).verdict is fd.Verdict.SAME


def test_weights_without_a_name_are_those_of_the_module_that_reads_them(tmp_path):
    trace = fd.trace(network(anonymous=True), tmp_path / "trace", inputs=(X,))
    held = {f"{r.site.name}.{r.site.port}": trace.array(r) for r in trace if r.site.phase == "weight"}
    assert held.keys() == WEIGHTS.keys()
    assert all(np.array_equal(held[name], array) for name, array in WEIGHTS.items())


def test_weights_beside_the_model_are_found(tmp_path):
    onnx.save(network(), tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    trace = fd.trace(tmp_path / "net.onnx", tmp_path / "trace", inputs=(X,))
    assert fd.diff(trace.path, fd.trace(network(), tmp_path / "other", inputs=(X,)).path).verdict is fd.Verdict.SAME


def test_an_optimized_graph_keeps_the_names_of_what_it_keeps(tmp_path):
    plain = fd.trace(network(), tmp_path / "plain", inputs=(X,))
    optimized = fd.trace(network(), tmp_path / "optimized", inputs=(X,), optimize=True)
    modules = names_of(plain) & set(TestConformance.modules)
    assert modules - names_of(optimized) <= {"blocks.0.fc1", "blocks.1.fc1"}  # bias and GELU became one
    assert optimized.header["options"]["optimize"]
    assert fd.diff(plain.path, optimized.path).exit_code == 0


def test_slices_of_few_bytes_give_the_same_trace(tmp_path, monkeypatch):
    from firstdrift.capture.onnx import onnx_running as running

    whole = fd.trace(network(), tmp_path / "whole", inputs=(X,))
    runs = []
    run = running._run
    monkeypatch.setattr(running, "SLICE_BYTES", 1000)
    monkeypatch.setattr(
        running, "_run", lambda session, names, inputs: runs.append(names) or run(session, names, inputs)
    )
    sliced = fd.trace(network(), tmp_path / "sliced", inputs=(X,))
    assert len(runs) > 5
    assert fd.diff(whole.path, sliced.path).verdict is fd.Verdict.SAME


def test_shapes_that_the_graph_computes_are_settings_and_no_tensors(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "/Shape", end=1),
        helper.make_node("Concat", ["shape", "rest"], ["sizes"], "/Concat", axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"], "/Reshape"),
    ]
    graph = helper.make_graph(
        nodes, "flat", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([40], np.int64), "rest")],
    )  # fmt: skip
    trace = fd.trace(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "t", inputs=(X,)
    )
    (computed,) = [record for record in trace if record.site.phase == "fwd"]
    assert computed.attrs["shape"] == [2, 40]


def test_a_module_called_twice_has_two_calls(tmp_path):
    scopes = {"key": "pkg.torch.onnx.name_scopes", "value": "['', 'act', 'relu']"}
    nodes = []
    for number, (inside, outside) in enumerate((("x", "a"), ("b", "y"))):
        relu = helper.make_node("Relu", [inside], [outside], f"relu_{number}")
        relu.metadata_props.add(**scopes)
        nodes.append(relu)
    nodes.insert(1, helper.make_node("Neg", ["a"], ["b"], "negate"))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "twice", value[:1], value[1:])
    trace = fd.trace(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "t", inputs=(X,)
    )
    assert [record.site.call for record in trace if record.site.name == "act"] == [0, 1]


def test_a_quantised_weight_is_recorded_as_stored_and_as_computed_with(tmp_path):
    whole = RANDOM.integers(-100, 100, (8, 3)).astype(np.int8)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["head.weight_quantized", "scale", "zero"], ["w"], "/head/DequantizeLinear"
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"], "/head/MatMul"),
    ]
    stored = {"head.weight_quantized": whole, "scale": np.float32(0.5), "zero": np.int8(3)}
    graph = helper.make_graph(
        nodes, "quantised", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 3])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )  # fmt: skip
    trace = fd.trace(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "t", inputs=(X,)
    )
    held = {record.site.port: trace.array(record) for record in trace if record.site.phase == "weight"}
    assert np.array_equal(held["weight_quantized"], whole)
    computed = next(array for port, array in held.items() if array.dtype == np.float32)
    assert np.array_equal(computed, (whole.astype(np.float32) - 3) * np.float32(0.5))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"y": X}, "net reads x, and was given y"),
        ((X, X), "reads x, and 2 inputs were given"),
        ((X.astype(np.float64),), "input x is float32 in the model and float64 here"),
        ((X[:, :4],), re.escape("input x has shape ['?', 5, 8] in the model and [2, 4, 8] here")),
    ],
)
def test_inputs_that_do_not_fit_are_refused_and_leave_no_trace(inputs, said, tmp_path):
    with pytest.raises(fd.CaptureError, match=said.replace("net ", "")):
        fd.trace(network(), tmp_path / "trace", inputs=inputs)
    assert not (tmp_path / "trace").exists()


def test_what_is_no_model_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x01nothing")
    for path, said in (("broken.onnx", "not an ONNX model"), ("absent.onnx", "there is no such file")):
        with pytest.raises(fd.CaptureError, match=said):
            fd.trace(tmp_path / path, tmp_path / "trace", inputs=(X,))
    with pytest.raises(fd.CaptureError, match="give inputs="):
        fd.trace(tmp_path / "broken.onnx", tmp_path / "trace")


def test_an_operation_that_the_runtime_has_not_is_named(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Fancy", ["x"], ["y"], "fancy", domain="my.own")], "custom",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("my.own", 1)], ir_version=9
    )
    with pytest.raises(fd.CaptureError, match=r"Fancy.*custom operations"):
        fd.trace(model, tmp_path / "trace", inputs=(X,))
    assert not (tmp_path / "trace").exists()


def test_without_the_extra_the_error_names_it(tmp_path):
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import firstdrift as fd\n"
        f"try: fd.trace('net.onnx', {str(tmp_path / 't')!r}, inputs=())\n"
        "except fd.CaptureError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'firstdrift[onnx]'" in said


def test_two_engines_agree_and_a_planted_mistake_is_found_where_it_is(tmp_path):
    fd.trace(network(), tmp_path / "reference", inputs=(X,))
    wrong = WEIGHTS | {"blocks.1.fc2.bias": WEIGHTS["blocks.1.fc2.bias"] * 2}
    fd.trace(network(weights=wrong), tmp_path / "candidate", inputs=(X,))
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate", explain=False)
    assert result.exit_code == 1
    assert (result.first_drift.site.phase, result.first_drift.site.name) == ("weight", "blocks.1.fc2")
