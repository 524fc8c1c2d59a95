"""A program from a file is run call by call: only what computes, on the CPU, and never more than it says of itself."""

import json
import random
import resource
import sys
import weakref

import pytest
import torch
from tests.program.by_hand import DEFINITIONS, LEAVES, PRODUCT, STEP, W, X, program_of, step, whole, written
from tests.program.replaying import array_bits, bits_of, mlp, record_training

import firstdrift as fd
from firstdrift.errors import FirstdriftError
from firstdrift.program.interpreter import Interpreter, NotReplayableError, operation
from firstdrift.program.process_settings import as_recorded


@pytest.fixture
def path(tmp_path):
    written(tmp_path / "t")
    return tmp_path / "t"


def run(path, lines, definitions=DEFINITIONS):
    """What every node of a step gives, or why it gives nothing."""
    program = program_of(path, whole(step(lines), definitions=definitions))
    found = program.steps[0]
    return dict(Interpreter(found, fd.open_trace(path)).run())


def call(op, args, out="[0]", **more):
    said = {"n": 2, "op": op, "args": args, "out": json.loads(out), **more}
    return [*LEAVES, json.dumps(said)]


def why_not(path, lines, definitions=DEFINITIONS, node=-1):
    """Why the last call cannot be made; never another exception than ours."""
    found = run(path, lines, definitions)
    error = list(found.values())[node]
    assert isinstance(error, NotReplayableError), error
    return str(error)


# Which operations.

OUTSIDE = [
    "os.system", "posix.system", "builtins.eval", "builtins.__import__", "subprocess.run", "torch.load", "torch.save",
    "torch.ops.aten.mm.default", "torch.hub.load", "torchvision.nms", "prim.device.default", "higher_order.cond",
    "aten.__class__", "aten.__class__.__init__", "aten.__dict__.x", "aten._dir.x", "aten.name.upper",
    "aten.mm.__class__", "aten.mm._schema", "aten.mm.op", "aten.mm.overloads", "aten.no_such_thing.default",
    "aten.mm.no_such_overload", "quantized.linear", "firstdrift.open_trace", "profiler._record_function_enter",
]  # fmt: skip
# Operations of ATen that reach outside of tensors: files, the terminal, the state of the process.
REACHING = [
    "aten.from_file.default", "aten.from_file.out", "aten.set_.source_Storage", "aten.set_.source_Tensor",
    "aten.set_data.default", "aten.save.default", "aten.save", "aten.manual_seed.default", "aten.manual_seed",
    "aten.seed.default", "aten.set_grad_enabled.default", "aten._print.default", "aten.warn.default",
]  # fmt: skip


@pytest.mark.parametrize("name", [*OUTSIDE, *REACHING])
def test_operations_outside_the_list_are_refused(name):
    with pytest.raises(NotReplayableError, match="is not on the list|is no operation of torch|computes nothing"):
        operation(name)


@pytest.mark.parametrize("name", OUTSIDE)
def test_refusing_an_operation_imports_nothing(path, name):
    run(path, LEAVES)  # what reading a trace takes
    before = set(sys.modules)
    assert name in why_not(path, call(name, ["touch never"]))
    assert set(sys.modules) == before


def test_a_program_cannot_write_a_file(path, tmp_path):
    target = tmp_path / "written"
    assert "aten.save" in why_not(path, call("aten.save.default", [{"%": 0}, str(target)], out="[]"))
    assert not target.exists()


def test_a_program_cannot_read_a_file(path, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 24)
    lines = call("aten.from_file.default", [str(secret), False, 6], kwargs={"dtype": {"dtype": "f32"}})
    assert "is not on the list" in why_not(path, lines)


def test_a_program_does_not_touch_random_numbers_or_modes(path):
    before = torch.get_rng_state(), torch.is_grad_enabled(), random.getstate()
    for op, args in (("aten.manual_seed.default", [3]), ("aten.set_grad_enabled.default", [False])):
        why_not(path, call(op, args, out="[]"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.is_grad_enabled(), random.getstate()) == before[1:]


@pytest.mark.parametrize("tag", ["layout", "memory_format", "dtype"])
@pytest.mark.parametrize("name", ["_inductor", "onnx", "_export", "set_vital", "__dict__", "load", "no_such_thing"])
def test_names_in_arguments_look_up_no_code(path, monkeypatch, tag, name):
    asked = []
    monkeypatch.setattr(torch, "__getattr__", lambda one: asked.append(one) or (_ for _ in ()).throw(AttributeError))
    lines = call("aten.zeros.default", [[2, 3]], kwargs={tag: {tag: name}})
    assert f"{tag} {name}" in why_not(path, lines)
    assert asked == []  # torch imports some of its modules when they are asked for


# What is said is checked.


def test_a_lying_shape_is_noticed_when_it_is_run(path):
    lines = [*LEAVES, PRODUCT.replace('"out":[0]', '"out":[1]')]
    assert why_not(path, lines) == "aten.mm.default gives f32 [2, 3] where the program says f32 [3, 3]"


def test_a_lying_dtype_is_noticed_when_it_is_run(path):
    lines = [*LEAVES, PRODUCT.replace('"out":[0]', '"out":[3]')]
    definitions = [*DEFINITIONS, '{"type":[3,"f64",[2,3]]}']
    assert why_not(path, lines, definitions) == "aten.mm.default gives f32 [2, 3] where the program says f64 [2, 3]"


def test_a_lying_number_of_results_is_noticed(path):
    assert "gives 1 tensors where the program says 2" in why_not(path, call("aten.relu.default", [{"%": 0}], "[0,0]"))
    assert "gives 1 tensors where the program says 0" in why_not(path, call("aten.relu.default", [{"%": 0}], "[]"))


def test_drawn_numbers_of_another_shape_than_the_result_are_noticed(path):
    lines = [*LEAVES, '{"n":2,"op":"aten.randn.default","args":[[2,3]],"out":[0],"drawn":[[0,1]]}']
    assert "where the program says f32 [2, 3]" in why_not(path, lines)


def test_what_draws_is_never_drawn_again(path):
    before = torch.get_rng_state()
    for op, args in (("aten.randn.default", [[2, 3]]), ("aten.bernoulli_.float", [{"%": 0}]),
                     ("aten.native_dropout.default", [{"%": 0}, 0.5, True])):  # fmt: skip
        assert "random numbers" in why_not(path, call(op, args))
    assert torch.equal(torch.get_rng_state(), before)


WRONG_CALLS = {
    "wrong shapes": call("aten.mm.default", [{"%": 0}, {"%": 0}]),
    "too few arguments": call("aten.mm.default", [{"%": 0}]),
    "no arguments at all": call("aten.native_batch_norm.default", []),
    "too many arguments": call("aten.relu.default", [{"%": 0}, 1, 2, 3]),
    "an argument nobody knows": call("aten.relu.default", [{"%": 0}], kwargs={"zzz": 1}),
    "text for a tensor": call("aten.relu.default", ["x"]),
    "a huge number": call("aten.mul.Tensor", [{"%": 0}, 10**40]),
    "a huge size": call("aten.zeros.default", [[2**40, 2**20]]),
    "an overflowing size": call("aten.zeros.default", [[2**62, 2**62]]),
    "a negative size": call("aten.zeros.default", [[-1]]),
    "an index beyond": call("aten.select.int", [{"%": 0}, 0, 99]),
    "a dimension beyond": call("aten.sum.dim_IntList", [{"%": 0}, [7]]),
    "memory beyond": call("aten.as_strided.default", [{"%": 0}, [100, 100], [100, 1]]),
    "negative memory": call("aten.as_strided.default", [{"%": 0}, [2], [1], -5]),
    "a complex of a number": call("aten.mul.Tensor", [{"%": 0}, {"complex": 3}]),
    "a complex of three": call("aten.mul.Tensor", [{"%": 0}, {"complex": [1, 2, 3]}]),
    "a complex of text": call("aten.mul.Tensor", [{"%": 0}, {"complex": ["a", "b"]}]),
    "a dtype of a dtype": call("aten.zeros.default", [[2, 3]], kwargs={"dtype": {"dtype": {"dtype": "f32"}}}),
    "a map": call("aten.relu.default", [{"map": {"a": 1}}]),
    "a slice": call("aten.relu.default", [{"slice": [0, 1, 2]}]),
    "an ellipsis": call("aten.relu.default", [{"ellipsis": True}]),
    "something lost": call("aten.relu.default", [{"lost": "sparse tensor"}]),
    "drawn by nobody": call("aten.native_dropout.default", [{"%": 0}], "[0,0]", drawn=[[1, 0]]),
    "drawn without the rest": call("aten.multinomial.default", [{"%": 0}, 2], "[0,0]", drawn=[[0, 0]]),
    "drawn as the wrong result": call("aten.native_dropout.default", [{"%": 0}, 0.5, True], "[0,0]", drawn=[[0, 0]]),
    "a dropout of text": call("aten.native_dropout.default", [{"%": 0}, "x", True], "[0,0]", drawn=[[1, 0]]),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_call_that_cannot_be_made_says_why(path, name):
    why = why_not(path, WRONG_CALLS[name])
    assert why
    assert "\n" not in why


WRONG_LEAVES = {
    "a number too large for its type": ('{"type":[0,"u8",[1]]}', '{"n":0,"type":0,"value":[300]}'),
    "a negative number without a sign": ('{"type":[0,"u8",[1]]}', '{"n":0,"type":0,"value":[-1]}'),
    "a float that is no whole number": ('{"type":[0,"i64",[1]]}', '{"n":0,"type":0,"value":["inf"]}'),
    "a dtype that nobody knows": ('{"type":[0,"f12",[1]]}', '{"n":0,"type":0,"value":[1]}'),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_LEAVES)
def test_a_leaf_that_cannot_be_made_says_why(path, name):
    definition, leaf = WRONG_LEAVES[name]
    assert why_not(path, [leaf], [definition])


@pytest.mark.parametrize("stride", [250_000_000, 10**14, 2**62])
def test_a_small_leaf_with_large_strides_takes_no_more_memory_than_it_needs(path, stride):
    """A gigabyte between two rows of three numbers is a claim, too."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    leaf, definition = '{"n":0,"type":0,"site":["input","input","x"]}', f'{{"type":[0,"f32",[2,3],[{stride},1]]}}'
    found = run(path, [leaf], [definition])[0]
    assert isinstance(found, NotReplayableError) or found[0].tolist() == X.tolist()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_missing_leaves_say_which_and_what_needs_them_says_so(path):
    lines = [
        '{"n":0,"type":0,"missing":"statistics only are kept here","name":"blocks.1.table"}',
        *[
            f'{{"n":{number},"op":"aten.relu.default","args":[{{"%":{number - 1}}}],"out":[0]}}'
            for number in range(1, 4)
        ],
        '{"n":4,"type":0,"site":["input","input","x"]}',
        '{"n":5,"op":"aten.relu.default","args":[{"%":4}],"out":[0]}',
    ]
    found = run(path, lines)
    assert str(found[0]) == "blocks.1.table is not in the trace (statistics only are kept here)"
    for number in (1, 2, 3):
        assert "blocks.1.table is not in the trace" in str(found[number])
    assert found[5][0].tolist() == X.tolist()


def test_what_follows_from_one_missing_leaf_is_said_in_few_words(path):
    lines = ['{"n":0,"type":0,"missing":"gone"}']
    for number in range(1, 400):
        lines.append(f'{{"n":{number},"op":"aten.relu.default","args":[{{"%":{number - 1}}}],"out":[0]}}')
    assert max(len(str(error)) for error in run(path, lines).values()) < 300


def test_values_of_statistics_alone_cannot_be_had(tmp_path):
    found = record_training(tmp_path / "t", mlp(), keep="stats")
    values = dict(Interpreter(found.step, found.trace).run())
    assert "weight 0:weight step 0 has no values (recorded as statistics only)" in str(values[0])
    products = [number for number, call in found.step.calls() if call.op in ("aten.addmm.default", "aten.mm.default")]
    assert products
    assert all(isinstance(values[number], NotReplayableError) for number in products)


# Where and how it runs.


def test_a_program_of_another_device_runs_on_the_cpu(path):
    lines = [
        '{"n":0,"type":0,"site":["input","input","x"]}',
        '{"n":1,"op":"aten.zeros.default","args":[[2,3]],"kwargs":{"device":{"device":"cuda:0"}},"out":[0]}',
        '{"n":2,"op":"aten._to_copy.default","args":[{"%":0}],"kwargs":{"device":{"device":"mps"},'
        '"dtype":{"dtype":"f64"}},"out":[1]}',
        '{"n":3,"op":"aten.add.Tensor","args":[{"%":1},{"%":2}],"out":[1]}',
    ]
    found = run(path, lines, ['{"type":[0,"f32",[2,3],null,"cuda:0"]}', '{"type":[1,"f64",[2,3],null,"cuda:0"]}'])
    assert found[3][0].device.type == "cpu"
    assert found[3][0].tolist() == X.tolist()
    assert found[3][0].dtype == torch.float64


def test_a_recorded_program_renamed_to_another_device_gives_the_same_bits(tmp_path):
    found = record_training(tmp_path / "t", mlp())
    text = found.text.replace('"device":"cpu"', '"device":"cuda:0"')
    text = "\n".join(
        json.dumps({"type": [*(line["type"] + [None])[:4], "cuda:0"]}) if isinstance(line.get("type"), list) else raw
        for line, raw in ((json.loads(raw), raw) for raw in text.splitlines())
    )
    program = program_of(tmp_path / "t", text + "\n")
    step = program.steps[0]
    assert {call.results[0].device for _, call in step.calls() if call.results} == {"cuda:0"}
    values = dict(Interpreter(step, found.trace).run())
    for value in values.values():
        assert not isinstance(value, NotReplayableError), value
    for site, ref in step.sites.items():
        assert bits_of(values[ref.node][ref.at]) == array_bits(found.trace.array(site))


def test_writing_never_changes_a_value_that_others_read(path):
    lines = [
        *STEP,
        '{"n":3,"op":"aten.mul_.Tensor","args":[{"%":2},0.0],"out":[0]}',
        '{"n":4,"op":"aten.add.Tensor","args":[{"%":2},{"%":3}],"out":[0]}',
        '{"n":5,"op":"aten.mul.out","args":[{"%":2},2.0],"kwargs":{"out":{"%":2}},"out":[0]}',
        '{"n":6,"op":"aten.add.Tensor","args":[{"%":2},{"%":3}],"out":[0]}',
        '{"n":7,"op":"aten._foreach_mul_.Scalar","args":[[{"%":2},{"%":0}],0.0],"out":[0,0]}',
        '{"n":8,"op":"aten.add.Tensor","args":[{"%":2},{"%":[7,1]}],"out":[0]}',
    ]
    found = run(path, lines)
    for number in (4, 6, 8):
        assert found[number][0].numpy().tobytes() == (X @ W).tobytes()
    assert found[3][0].count_nonzero() == 0


def test_leaves_are_copies_that_nobody_can_write_to_the_trace_through(path):
    before = (path / "data-00000.bin").read_bytes()
    found = run(path, LEAVES)
    found[0][0].zero_()
    assert (path / "data-00000.bin").read_bytes() == before


def test_values_are_let_go_after_their_last_reader(path):
    program = program_of(path, whole(step([*STEP, '{"n":3,"op":"aten.relu.default","args":[{"%":2}],"out":[0]}'])))
    alive = {}
    for number, values in Interpreter(program.steps[0], fd.open_trace(path)).run():
        alive[number] = weakref.ref(values[0])
        del values
    assert alive[2]() is None


def test_a_node_read_twice_by_one_call_is_kept_for_it(path):
    lines = [*STEP, '{"n":3,"op":"aten.mul.Tensor","args":[{"%":2},{"%":2}],"out":[0]}',
             '{"n":4,"op":"aten.add.Tensor","args":[{"%":2},{"%":3}],"out":[0]}']  # fmt: skip
    program = program_of(path, whole(step(lines)))
    values = [value for _, value in Interpreter(program.steps[0], fd.open_trace(path)).run()]
    product = torch.from_numpy(X @ W)
    assert torch.equal(values[4][0], product + product * product)


@pytest.mark.parametrize("threads", [None, 0, -3, True, "2", 10**9, 2.0])
def test_a_thread_count_that_is_none_is_passed_over(threads):
    before = torch.get_num_threads()
    with as_recorded({"threads": threads}):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def test_threads_are_put_back_after_an_exception():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), as_recorded({"threads": before + 1}):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_its_errors_are_ours():
    assert issubclass(NotReplayableError, FirstdriftError)
