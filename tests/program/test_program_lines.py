"""program.jsonl as it is read: what is whole is had, what lies is refused with a sentence, the trace stays readable."""

import json
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.program.by_hand import (
    DEFINITIONS,
    HEADER,
    LEAF,
    LEAVES,
    PRODUCT,
    STEP,
    W,
    X,
    program_of,
    step,
    whole,
    written,
)
from tests.program.replaying import record_training
from torch import nn

import firstdrift as fd
from firstdrift.errors import FirstdriftError, FormatError, VersionError
from firstdrift.program.calls import PARTS, Bytes, Call, Earlier, Inline, Missing, Place, Ref, Type
from firstdrift.program.interpreter import Interpreter
from firstdrift.program.written.read_program import read_program
from firstdrift.program.written.repeats import Whole, repeated
from firstdrift.program.written.step_lines import MOST_DEPTH


@pytest.fixture
def path(tmp_path):
    written(tmp_path / "t")
    return tmp_path / "t"


def run(program, trace, number=0):
    """Every value of a step."""
    found = program.steps[number]
    interpreter = Interpreter(found, trace)
    return dict(interpreter.run())


def assert_stays_comparable(path):
    """The trace without its program."""
    assert fd.open_trace(path).complete
    assert fd.diff(path, path).verdict == "same"


def refused(path, text, why):
    """Somewhere between opening the program and reading its steps, it is refused with this sentence."""
    with pytest.raises(FormatError) as error:
        program = program_of(path, text)
        for number in program.steps:
            program.steps[number]
    message = str(error.value)
    assert why in message
    assert "program.jsonl" in message
    assert len(message) < 700
    assert_stays_comparable(path)
    return message


# What is whole.


def test_a_program_written_by_hand_is_read_and_run(path):
    text = whole(step(STEP))
    program = program_of(path, text)
    assert program.problems == ()
    assert program.header == {"program": 1, "engine": "by hand", "threads": 1}
    found = program.steps[0]
    assert found.nodes[2] == Call(
        "aten.mm.default", (Ref(0), Ref(1)), {}, (Type("f32", (2, 3)),), module="fc",
        place=Place("engine.c", 12, "forward"),
    )  # fmt: skip
    site = fd.Site(0, "fwd", "fc", "out")
    assert program.find(site) == (found, Ref(2))
    assert program.find(site._replace(step=9)) is None
    values = run(program, fd.open_trace(path))
    assert values[2][0].numpy().tobytes() == (X @ W).tobytes()


def test_every_kind_of_leaf_and_argument_is_read(tmp_path):
    at = list(written(tmp_path / "t", steps=2))
    lines = [
        *LEAVES,
        json.dumps({"n": 2, "type": 2, "at": at, "name": "fc.scale"}),
        '{"n":3,"type":2,"value":[1,2.5,"inf"]}',
        '{"n":4,"type":2,"missing":"the disk was full","name":"table"}',
        '{"part":"optimizer"}',
        '{"n":5,"type":0,"site":["fwd","fc","out"],"ago":1}',
        '{"n":6,"op":"aten.mul.Tensor","args":[{"%":[5,0]},{"%":2}],"out":[0],"node":"Own","again":true,'
        '"implied":true,"function":0}',
        '{"n":7,"op":"aten.full.default","args":[[3],{"float":"-inf"}],"kwargs":{"dtype":{"dtype":"f32"},'
        '"device":{"device":"cuda:0"},"pin_memory":null},"out":[2],"read":[1,2],"of":6}',
        '{"function":0,"args":[{"%":5},{"map":{"a":[1,{"slice":[0,null,2]},{"ellipsis":true}]}}],'
        '"calls":[6,7],"out":[{"%":6}],"line":0,"module":0}',
        '{"function":1,"args":[{"%":5}],"read":[1.5]}',
        '{"optimizer":{"class":"SGD","groups":[]}}',
        '{"note":"said"}',
    ]
    program = program_of(tmp_path / "t", whole([*step(STEP), *step(lines, 1)]))
    found = program.steps[1]
    sources = [leaf.source for leaf in found.nodes[2:6]]
    assert sources == [
        Bytes(tuple(at)), Inline((1, 2.5, "inf")), Missing("the disk was full"),
        Earlier(fd.Site(0, "fwd", "fc", "out")),
    ]  # fmt: skip
    assert found.nodes[2].name == "fc.scale"
    call = found.nodes[6]
    assert (call.part, call.of, call.node, call.again, call.implied) == ("optimizer", None, "Own", True, True)
    assert (call.function, found.nodes[7].of) == ("torch.mul", 6)
    assert found.nodes[7].args == ((3,), {"float": "-inf"})
    assert found.nodes[7].read == [1, 2]
    assert found.functions[0].args[1] == {"map": {"a": (1, {"slice": (0, None, 2)}, {"ellipsis": True})}}
    assert found.function_of.keys() == {6, 7}
    assert found.functions[1].first == found.functions[1].last + 1
    assert found.optimizers == ({"class": "SGD", "groups": []},)
    assert found.notes == ("said",)
    values = run(program, fd.open_trace(tmp_path / "t"), 1)
    assert values[6][0].numpy().tobytes() == ((X @ W) * LEAF).tobytes()
    assert values[3][0].tolist() == [1, 2.5, float("inf")]
    assert "table is not in the trace (the disk was full)" in str(values[4])


def test_what_a_tensor_depends_on_is_found(path):
    lines = [*STEP, '{"n":3,"op":"aten.relu.default","args":[{"%":2}],"out":[0]}']
    found = program_of(path, whole(step(lines))).steps[0]
    assert found.behind(Ref(3)) == [0, 1, 2, 3]
    assert found.behind(Ref(3), stop=frozenset({2})) == [2, 3]
    assert found.behind(Ref(1)) == [1]


def test_keys_that_nobody_knows_yet_are_passed_over(path):
    program = program_of(path, whole(step([*LEAVES, PRODUCT.replace('"op"', '"later":[1],"op"')])))
    assert program.steps[0].nodes[2].op == "aten.mm.default"


def test_every_part_there_is_can_be_said(path):
    for part in PARTS:
        lines = [*LEAVES, json.dumps({"part": part}), PRODUCT]
        assert program_of(path, whole(step(lines))).steps[0].nodes[2].part == part


# What lies.

RELU = '{"n":3,"op":"aten.relu.default","args":[%s],"out":[0]}'
WRONG = {
    "a dangling reference": ([*STEP, RELU % '{"%":7}'], "it refers to node 7, of which 3 came before"),
    "a reference to itself": ([*STEP, RELU % '{"%":3}'], "it refers to node 3, of which 3 came before"),
    "a reference forwards": (
        [*LEAVES, PRODUCT.replace('{"%":0}', '{"%":3}'), RELU % '{"%":2}'], "it refers to node 3, of which 2 came",
    ),
    "a negative reference": ([*STEP, RELU % '{"%":-1}'], "it refers to node -1"),
    "a result there is not": ([*STEP, RELU % '{"%":[2,1]}'], "result 1 of node 2, which has fewer"),
    "a second result of a leaf": ([*STEP, RELU % '{"%":[0,1]}'], "result 1 of node 0, which has fewer"),
    "a negative result": ([*STEP, RELU % '{"%":[2,-1]}'], "result -1 of node 2"),
    "a reference that is text": ([*STEP, RELU % '{"%":"2"}'], "is no reference"),
    "a reference that is true": ([*STEP, RELU % '{"%":true}'], "is no reference"),
    "a reference of three": ([*STEP, RELU % '{"%":[2,0,0]}'], "is no reference"),
    "a deep dangling reference": ([*STEP, RELU % '[[{"map":{"a":{"%":9}}}]]'], "it refers to node 9"),
    "a site that is a number": ([*LEAVES, PRODUCT, '{"is":2,"site":["fwd","fc","out"]}'], "2 is no reference"),
    "another shape than the index": (
        ['{"n":0,"type":1,"site":["input","input","x"]}'],
        "input input:x step 0 is f32 [3, 3] here and f32 [2, 3] in the index; this program is of another run",
    ),
    "another shape of a result than the index": (
        [*LEAVES, PRODUCT.replace('"out":[0]', '"out":[1]'), STEP[-1]], "in the index; this program is of another run",
    ),
    "a site of another model": (['{"n":0,"type":0,"site":["fwd","conv","out"]}'], "no site fwd conv:out step 0"),
    "a value of another model": ([*LEAVES, '{"is":{"%":0},"site":["fwd","conv","out"]}'], "no site fwd conv:out"),
    "a phase there is not": (['{"n":0,"type":0,"site":["forward","fc","out"]}'], "phase 'forward' is not one of"),
    "a site that is text": (['{"n":0,"type":0,"site":"fwd fc"}'], "is not [phase, name, port]"),
    "a site of five": (['{"n":0,"type":0,"site":["fwd","fc","out",0,0]}'], "is not [phase, name, port]"),
    "a negative call": (['{"n":0,"type":0,"site":["fwd","fc","out",-1]}'], "call -1 is not a whole number"),
    "a site that is two values": (
        [*STEP, RELU % '{"%":2}', '{"is":{"%":3},"site":["fwd","fc","out"]}'], "fwd fc:out step 0 is two values",
    ),
    "a number that jumps": ([*LEAVES, PRODUCT.replace('"n":2', '"n":3')], "n is 3 where 2 should come"),
    "a number that repeats": ([*LEAVES, PRODUCT.replace('"n":2', '"n":1')], "n is 1 where 2 should come"),
    "a number that is a float": ([LEAVES[0].replace('"n":0', '"n":0.0')], "n is 0.0 where 0 should come"),
    "a number that is false": ([LEAVES[0].replace('"n":0', '"n":false')], "n is False where 0 should come"),
    "a huge constant": (
        [f'{{"n":0,"type":1,"value":{[1] * 9000}}}'], "9000 elements cannot be a constant of shape [3, 3]",
    ),
    "a short constant": (['{"n":0,"type":1,"value":[1,2]}'], "2 elements cannot be a constant of shape [3, 3]"),
    "a constant of text": (['{"n":0,"type":2,"value":[1,2,"3"]}'], "the elements of a constant are numbers"),
    "a constant of lists": (['{"n":0,"type":2,"value":[1,2,[3]]}'], "the elements of a constant are numbers"),
    "a constant of objects": (['{"n":0,"type":2,"value":[1,2,{}]}'], "the elements of a constant are numbers"),
    "a constant of nothing": (['{"n":0,"type":2,"value":[1,2,null]}'], "the elements of a constant are numbers"),
    "a constant that is no list": (['{"n":0,"type":2,"value":3}'], "'value' is 3; it must be a list"),
    "deep nesting": ([*STEP, RELU % ("[" * 40 + "]" * 40)], f"arguments lie deeper than {MOST_DEPTH} lists"),
    "deep maps": ([*STEP, RELU % ('{"map":{"a":' * 20 + "1" + "}}" * 20)], "arguments lie deeper than"),
    "an unknown part": ([*LEAVES, '{"part":"sideways"}'], "part 'sideways' is not one of forward, loss"),
    "a part that is a list": ([*LEAVES, '{"part":[]}'], "part [] is not one of forward, loss"),
    "an operation that is code": ([*LEAVES, PRODUCT.replace("aten.mm.default", "os.system('x')")], "no dotted name"),
    "an operation that is a path": ([*LEAVES, PRODUCT.replace("aten.mm.default", "../../evil.so")], "no dotted name"),
    "an operation of one word": ([*LEAVES, PRODUCT.replace("aten.mm.default", "mm")], "no dotted name"),
    "an operation in other letters": ([*LEAVES, PRODUCT.replace("aten.mm", "aten.\u0430dd")], "no dotted name"),
    "an endless operation": ([*LEAVES, PRODUCT.replace("aten.mm.default", "aten." + "m" * 300)], "no dotted name"),
    "an operation that is a number": ([*LEAVES, PRODUCT.replace('"aten.mm.default"', "3")], "no dotted name"),
    "a function by its name": ([*STEP, '{"function":"torch.mul"}'], "function 'torch.mul' is not one of the 2 defined"),
    "a function that is not defined": ([*STEP, '{"function":2}'], "function 2 is not one of the 2 defined before"),
    "an unknown key in an argument": ([*STEP, RELU % '{"pickle":"gASV"}'], "is not an object with one of the keys"),
    "two keys in an argument": ([*STEP, RELU % '{"%":2,"dtype":"f32"}'], "is not an object with one of the keys"),
    "a float that is a list": ([*STEP, RELU % '{"float":[1]}'], "is not one of nan, inf, -inf"),
    "a float that is a number": ([*STEP, RELU % '{"float":1.5}'], "is not one of nan, inf, -inf"),
    "an empty object": ([*STEP, RELU % "{}"], "is not an object with one of the keys"),
    "endless text": ([*STEP, RELU % f'"{"a" * 5000}"'], "is no text of at most 4096 characters"),
    "arguments that are no list": ([*LEAVES, PRODUCT.replace('[{"%":0},{"%":1}]', "3")], "'args' is 3; it must be"),
    "named arguments that are a list": ([*LEAVES, PRODUCT[:-1] + ',"kwargs":[]}'], "'kwargs' is []; it must be an obj"),
    "results that are no list": ([*LEAVES, PRODUCT.replace('"out":[0]', '"out":0')], "'out' is 0; it must be a list"),
    "an unknown type": ([*LEAVES, PRODUCT.replace('"out":[0]', '"out":[9]')], "type 9 is not one of the 3 defined"),
    "a negative type": (['{"n":0,"type":-1,"value":[]}'], "type -1 is not one of the 3 defined before"),
    "an unknown module": ([*LEAVES, PRODUCT.replace('"module":0', '"module":1')], "module 1 is not one of the 1"),
    "an unknown line": ([*LEAVES, PRODUCT.replace('"line":0', '"line":5')], "line 5 is not one of the 1"),
    "a leaf of nothing": (['{"n":0,"type":0}'], "a leaf has one of site, at, value and missing, and this one has none"),
    "a leaf of two": (['{"n":0,"type":0,"missing":"x","value":[]}'], "and this one has ['value', 'missing']"),
    "a name that is a number": (['{"n":0,"type":0,"missing":"x","name":3}'], "name '3' is no text"),
    "bytes of the wrong size": (['{"n":0,"type":0,"at":[0,0,23]}'], "takes 24 bytes but 'at' says 23"),
    "bytes beyond the file": (['{"n":0,"type":0,"at":[0,4000000,24]}'], "its bytes end at 4000024 of data-00000.bin"),
    "bytes of another file": (['{"n":0,"type":0,"at":[7,0,24]}'], "of data-00007.bin, which is shorter or missing"),
    "a place of two": (['{"n":0,"type":0,"at":[0,24]}'], "is not [file number, offset, bytes]"),
    "a negative place": (['{"n":0,"type":0,"at":[0,-24,24]}'], "is not [file number, offset, bytes]"),
    "a place that is text": (['{"n":0,"type":0,"at":"0"}'], "is not [file number, offset, bytes]"),
    "bits of the wrong size": (['{"n":0,"type":0,"at":[0,0,24],"bits":true}'], "takes 1 bytes but 'at' says 24"),
    "steps before the first": (['{"n":0,"type":0,"site":["fwd","fc","out"],"ago":1}'], "is before the first step"),
    "no steps ago": (['{"n":0,"type":0,"site":["fwd","fc","out"],"ago":0}'], "is before the first step"),
    "steps ago that are text": (['{"n":0,"type":0,"site":["fwd","fc","out"],"ago":"1"}'], "ago '1' is not a whole"),
    "a later call differentiated": ([*LEAVES, PRODUCT[:-1] + ',"of":2}'], "'of' 2 is no call before this one"),
    "a leaf differentiated": ([*LEAVES, PRODUCT[:-1] + ',"of":0}'], "'of' 0 is no call before this one"),
    "text differentiated": ([*LEAVES, PRODUCT[:-1] + ',"of":"0"}'], "'of' '0' is no call before this one"),
    "a custom function that is a number": ([*LEAVES, PRODUCT[:-1] + ',"node":1}'], "node '1' is no text"),
    "random numbers of a call": ([*STEP, (RELU % '{"%":2}')[:-1] + ',"drawn":[[0,2]]}'], "node 2 is no leaf before"),
    "random numbers to come": ([*LEAVES, PRODUCT[:-1] + ',"drawn":[[0,5]]}'], "node 5 is no leaf before this call"),
    "random numbers without a result": ([*LEAVES, PRODUCT[:-1] + ',"drawn":[3]}'], "'drawn' 3 is not [result, leaf]"),
    "random numbers of no result": ([*LEAVES, PRODUCT[:-1] + ',"drawn":[[7,0]]}'], "result 7"),
    "calls to come": ([*STEP, '{"function":0,"calls":[2,9]}'], "'calls' [2, 9] are not the first and"),
    "calls in the wrong order": ([*STEP, '{"function":0,"calls":[2,0]}'], "'calls' [2, 0] are not"),
    "calls that are one": ([*STEP, '{"function":0,"calls":[2]}'], "'calls' [2] are not the first and"),
    "negative calls": ([*STEP, '{"function":0,"calls":[-1,2]}'], "'calls' [-1, 2] are not"),
    "an optimizer that is text": ([*STEP, '{"optimizer":"SGD"}'], "'optimizer' is SGD; it must be an object"),
    "a note that is a number": ([*STEP, '{"note":3}'], "note '3' is no text"),
    "a line of nothing": ([*STEP, '{"what":1}'], "['what'] is no line of a step"),
    "a line that is a list": ([*STEP, "[1]"], "it is JSON but a list, not an object"),
    "a line that is not JSON": ([*STEP, "{n:1}"], "it is not JSON"),
    "a line with NaN": ([*STEP, RELU % "NaN"], "NaN is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_step_with(path, name):
    lines, why = WRONG[name]
    message = refused(path, whole(step(lines)), why)
    assert ", line " in message


WRONG_FILES = {
    "a higher version": (whole(step(STEP), ['{"program":2}']), "version 2, but this firstdrift reads up to 1; upgrade"),
    "no version": (whole(step(STEP), ['{"format":1}']), "'program' is None, not a version such as 1"),
    "version 0": (whole(step(STEP), ['{"program":0}']), "'program' is 0, not a version"),
    "a version that is true": (whole(step(STEP), ['{"program":true}']), "'program' is True, not a version"),
    "a version that is a float": (whole(step(STEP), ['{"program":1.0}']), "'program' is 1.0, not a version"),
    "two end lines": (whole(step(STEP)) + '{"end":11}\n', "it follows the end line; two programs"),
    "two programs": (whole(step(STEP)) * 2, "it follows the end line; two programs were written into one"),
    "a wrong end count": (whole(step(STEP)).replace('{"end": 13}', '{"end": 12}'), "counts 12 lines and 13 came"),
    "an end count that is text": (whole(step(STEP)).replace("13}", '"13"}'), "counts '13' lines and 13 came"),
    "an end count that is a float": (whole(step(STEP)).replace("13}", "13.0}"), "counts 13.0 lines and 13 came"),
    "a step twice": (whole([*step(STEP), *step(STEP)]), "step 0 came before; a step has one program"),
    "a negative step": (whole(step(STEP, -1)), "step -1 is not a whole number"),
    "a step that is text": (whole(['{"step":"0","lines":0}']), "step '0' is not a whole number"),
    "a step without lines": (whole(['{"step":0}']), "step 0 counts None lines"),
    "a step of -1 lines": (whole(['{"step":0,"lines":-1}']), "step 0 counts -1 lines"),
    "a step of too many lines": (whole(['{"step":0,"lines":9999999999}']), "step 0 counts 9999999999 lines"),
    "a step of true lines": (whole(['{"step":0,"lines":true}', '{"note":"x"}']), "step 0 counts True lines"),
    "like an unknown step": (whole([*step(STEP), '{"step":1,"like":5}']), "step 1 is like step 5, of which no program"),
    "like itself": (whole([*step(STEP), '{"step":1,"like":1}']), "step 1 is like step 1, of which no program"),
    "like a step to come": (whole(['{"step":1,"like":0}', *step(STEP)]), "step 1 is like step 0, of which no program"),
    "like a step that is like another": (
        whole([*step([]), '{"step":1,"like":0}', '{"step":2,"like":1}']), "step 2 is like step 1, of which no program",
    ),
    "like text": (whole([*step(STEP), '{"step":1,"like":"0"}']), "is like step '0', of which no program"),
    "a type out of order": (whole([], definitions=['{"type":[1,"f32",[2]]}']), "type 1 comes where 0 should"),
    "a type twice": (whole([], definitions=DEFINITIONS[:1] * 2), "type 0 comes where 1 should"),
    "a type without a shape": (whole([], definitions=['{"type":[0,"f32"]}']), "is not [number, dtype, shape]"),
    "a negative dimension": (whole([], definitions=['{"type":[0,"f32",[-2]]}']), "dimension -2"),
    "a dimension that is text": (whole([], definitions=['{"type":[0,"f32",["2"]]}']), "dimension '2'"),
    "a tensor beyond all memory": (whole([], definitions=[f'{{"type":[0,"f32",{[2**40, 2**40]}]}}']), "2**63 bytes"),
    "a tensor of 70 dimensions": (whole([], definitions=[f'{{"type":[0,"f32",{[1] * 70}]}}']), "beyond 64 dimensions"),
    "too few strides": (whole([], definitions=['{"type":[0,"f32",[2,3],[1]]}']), "strides [1] are not whole numbers"),
    "negative strides": (whole([], definitions=['{"type":[0,"f32",[2],[-1]]}']), "strides [-1] are not whole numbers"),
    "a device that is a number": (whole([], definitions=['{"type":[0,"f32",[2],null,3]}']), "device '3' is no text"),
    "a type of six": (whole([], definitions=['{"type":[0,"f32",[2],null,"cpu",1]}']), "is not [number, dtype, shape]"),
    "a dtype of endless letters": (whole([], definitions=[f'{{"type":[0,"{"f" * 5000}",[2]]}}']), "dtype"),
    "a module that is a number": (whole([], definitions=['{"module":[0,3]}']), "module 3 is a int"),
    "a module that leaves": (whole([], definitions=['{"module":[0,"../x"]}']), "'..' component"),
    "a line of code without a file": (whole([], definitions=['{"line":[0,12,"f"]}']), "is not [number, file, line"),
    "a line of code that is text": (whole([], definitions=['{"line":[0,"a.py","12","f"]}']), "is not [number, file"),
    "a definition of nothing": (whole(['{"what":1}']), "['what'] is no type, module, function, line or step"),
    "a definition that is empty": (whole(['{"type":[]}']), "is no type, module, function, line or step"),
    "a line that is not UTF-8": (whole(step(STEP)).encode() + b"\xff\xfe\n", "it is not UTF-8"),
    "a header that is not JSON": ("program\n", "it is not a JSON object"),
    "bytes of something else": (bytes(range(128, 256)) + b"\n", "it is not UTF-8"),
    "a line of a step outside one": (whole([STEP[0]]), "is no type, module, function, line or step"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_with(path, name):
    text, why = WRONG_FILES[name]
    refused(path, text, why)


def test_a_higher_version_is_told_apart(path):
    with pytest.raises(VersionError):
        program_of(path, whole(step(STEP), ['{"program":2}']))


BAD_CHANGES = {
    "changes that are no list": ('"changes":3', "'changes' is 3, not a list"),
    "a change of three": ('"changes":[["aten.mm.default","args.0",1]]', "is not [operation, where, number, number]"),
    "a change of text": ('"changes":[["aten.mm.default","args.0","1",2]]', "is not [operation, where, number, number]"),
    "a change of nobody": ('"changes":[[3,"args.0",1,2]]', "is not [operation, where, number, number]"),
    "a change that makes it wrong": ('"changes":[["aten.mm.default","n",2,9]]', "n is 9 where 2 should come"),
    "a change of a reference": ('"changes":[["aten.mm.default","args.0.%",0,7]]', "it refers to node 7"),
    "a replaced line there is not": ('"replaced":[[9,{"note":"x"}]]', "is not [line, object] of a line there is"),
    "a negative replaced line": ('"replaced":[[-1,{"note":"x"}]]', "is not [line, object] of a line there is"),
    "a line replaced by text": ('"replaced":[[0,"x"]]', "line 0 is replaced by x, not by an object"),
    "a line replaced by another kind": ('"replaced":[[0,{"note":"x"}]]', "n is 1 where 0 should come"),
    "places that are no list": ('"stored":{}', "'stored' is {}, not a list"),
    "too few places": ('"stored":[]', "has no place [file, offset] for every stored tensor"),
    "places of three": ('"stored":[[0,0,0]]', "has no place [file, offset] for every stored tensor"),
    "places beyond the file": ('"stored":[[0,999999]]', "which is shorter or missing"),
    "places of text": ('"stored":[["0",0]]', "is not [file number, offset, bytes]"),
    "a change deeper than all digits": (
        f'"changes":[["aten.mm.default","args.{"9" * 5000}",1,2]],"replaced":[[9,{{}}]]', "is not [line, object]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_step_like_another_one_with(tmp_path, name):
    at = list(written(tmp_path / "t", steps=2))
    said, why = BAD_CHANGES[name]
    lines = [*STEP, json.dumps({"n": 3, "type": 2, "at": at})]
    text = whole([*step(lines), f'{{"step":1,"like":0,{said}}}'])
    message = refused(tmp_path / "t", text, why)
    assert "step 1" in message or "line" in message
    assert program_of(tmp_path / "t", text).steps[0].nodes  # the step that it is like is there all the same


def test_a_change_at_a_place_of_endless_digits_changes_nothing(tmp_path):
    written(tmp_path / "t", steps=2)
    said = f'"changes":[["aten.mm.default","args.{"9" * 5000}",1,2]]'
    program = program_of(tmp_path / "t", whole([*step(STEP), f'{{"step":1,"like":0,{said}}}']))
    assert program.steps[1].nodes[2] == program.steps[0].nodes[2]


def test_a_step_like_another_one_is_read_with_its_changes(tmp_path):
    at = list(written(tmp_path / "t", steps=2))
    lines = [
        *STEP,
        json.dumps({"n": 3, "type": 2, "at": at}),
        '{"n":4,"op":"aten.mul.Tensor","args":[{"%":2},2.0],"out":[0]}',
        '{"n":5,"op":"aten.mul.Tensor","args":[{"%":2},2],"out":[0]}',
        '{"n":6,"op":"aten.add.Tensor","args":[{"%":2},2.0],"out":[0]}',
        '{"optimizer":{"groups":[{"step":1}]}}',
    ]
    repeats = {
        "step": 1, "like": 0, "stored": [[0, 0]], "replaced": [[6, json.loads(lines[6].replace("2]", "7]"))]],
        "changes": [["aten.mul.Tensor", "args.1", 2.0, 3.0], ["optimizer", "optimizer.groups.0.step", 1, 2]],
    }  # fmt: skip
    program = program_of(tmp_path / "t", whole([*step(lines), json.dumps(repeats)]))
    first, second = program.steps[0], program.steps[1]
    assert second.number == 1
    assert [node.args[1] for node in second.nodes[4:]] == [3.0, 7, 2.0]
    assert [node.args[1] for node in first.nodes[4:]] == [2.0, 2, 2.0]
    assert second.nodes[3].source.at == (0, 0, 12)
    assert second.optimizers == ({"groups": [{"step": 2}]},)
    assert second.sites.keys() == {site._replace(step=1) for site in first.sites}


# What was cut off.


def test_every_cut_of_a_file_loses_only_the_steps_that_are_not_whole_and_says_so(tmp_path):
    written(tmp_path / "t", steps=3)
    text = whole([*step(STEP), *step(STEP, 1), *step(STEP, 2)]).encode()
    lines = text.splitlines(keepends=True)
    ends = [
        sum(map(len, lines[: 1 + len(DEFINITIONS) + 5 * number])) for number in (1, 2, 3)
    ]  # where each step is whole
    for cut in range(len(text)):
        program = program_of(tmp_path / "t", text[:cut])
        whole_steps = [number for number in range(3) if ends[number] <= cut]
        assert list(program.steps) == whole_steps
        assert program.problems
        assert all("program.jsonl" in problem for problem in program.problems)
        if cut and text[cut - 1 : cut] != b"\n":
            said = ("is torn", "ends inside step", "is empty")
            assert any(one in problem for one in said for problem in program.problems)
        for number in whole_steps:
            assert len(program.steps[number].nodes) == 3
    assert program_of(tmp_path / "t", text).problems == ()
    program_of(tmp_path / "t", text[: ends[1] + 40])
    assert_stays_comparable(tmp_path / "t")


def test_a_cut_inside_a_step_names_it(path):
    text = whole(step(STEP))
    program = program_of(path, text[: text.index('{"n":2')])
    assert program.problems == (
        "program.jsonl ends inside step 0, which is left out",
        "program.jsonl has no end line; whole steps: 0",
    )
    assert dict(program.steps) == {}


def test_an_empty_file_is_a_program_that_was_never_begun(path):
    program = program_of(path, "")
    assert (dict(program.steps), len(program.problems)) == ({}, 1)
    assert "is empty" in program.problems[0]


def test_a_trace_without_a_program_has_none(path):
    assert read_program(fd.open_trace(path)) is None


def test_a_directory_of_that_name_is_no_program(path):
    (path / "program.jsonl").mkdir()
    assert read_program(fd.open_trace(path)) is None


# Claims cost nothing.


@pytest.mark.parametrize(
    "text",
    [
        whole(['{"step":0,"lines":10000000}']),
        whole(['{"step":0,"lines":40000000}']),
        whole(step([]), definitions=['{"type":[0,"u8",[4611686018427387904]]}']),
        whole(step(['{"n":0,"type":0,"missing":"x"}']), definitions=['{"type":[0,"f64",[1000000000,100]]}']),
        whole([*step([]), *(f'{{"step":{number},"like":0}}' for number in range(1, 200))]),
        whole(step(['{"function":0,"calls":[0,-1]}'] * 50)),
    ],
)
def test_nothing_is_allocated_in_proportion_to_a_claim(path, text):
    trace = fd.open_trace(path)
    (path / "program.jsonl").write_text(text)
    tracemalloc.start()
    try:
        program = read_program(trace)
        for number in program.steps:
            program.steps[number]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_nesting_of_any_depth_is_refused_as_such(path):
    """Just short of what the JSON scanner refuses itself, whatever else walks through it must not fail."""
    for depth in (*range(MOST_DEPTH + 2, 30), *range(500, 1000, 7)):
        for item in ("[" * depth + "]" * depth, '{"x":' * depth + "1" + "}" * depth):
            for line in (RELU % item, f'{{"n":3,"op":"aten.x","args":{item}}}', f'{{"note":{item}}}'):
                with pytest.raises(FormatError):
                    program_of(path, whole(step([*STEP, line]))).steps[0]


# Any bytes.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A recorded program of a real run, with repeats, masks, leaves and an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3))
    path = tmp_path_factory.mktemp("real") / "t"
    return record_training(path, model, torch.optim.Adam(model.parameters(), foreach=True), steps=3, source=True)


def read_all(trace, data):
    """A program with all its steps, or errors of ours."""
    (trace.path / "program.jsonl").write_bytes(data)
    try:
        program = read_program(trace)
    except FirstdriftError:
        return
    for number in program.steps:
        try:
            assert program.steps[number].number == number
        except FirstdriftError:
            continue


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "t"
    written(path, steps=2)
    return fd.open_trace(path)


@settings(max_examples=150)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_program_or_an_error_of_ours(small, data):
    read_all(small, data)
    read_all(small, HEADER[0].encode() + b"\n" + data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from(["inf", "%", "f32", "aten.mm.default", "fwd", "fc", "out"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["%", "dtype", "map", "float", "x"]) | st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = (
    "n", "op", "args", "kwargs", "out", "type", "site", "at", "bits", "value", "missing", "name", "is", "function",
    "calls", "part", "optimizer", "note", "of", "node", "drawn", "read", "again", "module", "line", "ago", "step",
    "lines", "like", "changes", "replaced", "stored", "end", "program",
)  # fmt: skip


@settings(max_examples=150)
@given(lines=st.lists(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=5), max_size=4), data=st.data())
def test_any_objects_are_a_program_or_an_error_of_ours(small, lines, data):
    drawn = [json.dumps(line) for line in lines]
    inside = data.draw(st.booleans())
    read_all(small, whole(step([*STEP, *drawn]) if inside else [*step(STEP), *drawn]).encode())


@settings(max_examples=60)
@given(data=st.data())
def test_any_change_of_a_real_program_gives_a_program_or_an_error_of_ours(real, data):
    lines = real.text.encode().splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["byte", "drop", "twice", "swap", "cut", "key"]))
        line = lines[at]
        if kind == "byte" and line:
            spot = data.draw(st.integers(0, len(line) - 1))
            lines[at] = line[:spot] + bytes([data.draw(st.integers(0, 255))]) + line[spot + 1 :]
        elif kind == "drop":
            lines[at] = b""
        elif kind == "twice":
            lines[at] = line * 2
        elif kind == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "cut":
            lines = lines[: at + 1]
            break
        elif line in real.text.encode().splitlines(keepends=True):  # still as it was
            said = json.loads(line)
            key = data.draw(st.sampled_from(sorted(said)) | st.sampled_from(KEYS))
            lines[at] = json.dumps(said | {key: data.draw(json_values)}).encode() + b"\n"
    read_all(real.trace, b"".join(lines))


# Repeats.


def lines_of_step(real):
    start = next(at for at, line in enumerate(real.lines) if "lines" in line and line["lines"] > 50)
    return real.text.splitlines()[start + 1 : start + 1 + real.lines[start]["lines"]]


numbers = st.sampled_from([0, 0.0, -0.0, 1, 1.0, True, False, 2, -1.5, 1e300]) | st.floats(
    allow_nan=False, allow_infinity=False
)  # fmt: skip


def with_number(line, data):
    """A call with a further number among its arguments."""
    said = json.loads(line)
    return json.dumps(said | {"args": [*said["args"], data.draw(numbers)]}, separators=(",", ":"))


def edited(line, data):
    """A line of a step with one small difference."""
    said = json.loads(line)
    kinds = {
        "place": "at" in said, "read": "op" in said, "argument": "args" in said, "text": True,
        "number": bool(said.get("args")) and type(said["args"][-1]) in (int, float, bool),
        "settings": "optimizer" in said,
    }  # fmt: skip
    kind = data.draw(st.sampled_from([name for name, fits in kinds.items() if fits]))
    if kind == "place":
        said["at"] = [0, data.draw(st.integers(0, 9000)), said["at"][2]]
    elif kind == "read":
        said["read"] = data.draw(numbers)
    elif kind == "argument":
        return with_number(line, data)
    elif kind == "number":
        said["args"][-1] = data.draw(numbers)
    elif kind == "settings":
        said["optimizer"]["groups"][0]["step"] = data.draw(numbers)
    else:
        said["function"] = 7
    return json.dumps(said, separators=(",", ":"))


def exact(lines):
    return [json.dumps(line, sort_keys=True) for line in lines]


@settings(max_examples=120)
@given(data=st.data())
def test_differences_and_what_is_made_of_them_are_exact_inverses(real, data):
    first = lines_of_step(real)
    calls = [at for at, line in enumerate(first) if '"op":' in line]
    changing = data.draw(st.lists(st.sampled_from(calls), max_size=4, unique=True))
    for at in changing:
        first[at] = with_number(first[at], data)
    second = list(first)
    for at in changing + data.draw(st.lists(st.integers(0, len(first) - 1), max_size=3)):
        second[at] = edited(second[at], data)
    said = Whole(0, first).differences(second)
    if said is not None:
        said = json.loads(json.dumps({"step": 1, "like": 0, **said}))
        again = repeated([json.loads(line) for line in first], said, "here")
        assert exact(again) == exact(json.loads(line) for line in second)


@pytest.mark.parametrize(
    ("was", "now"), [(0.0, -0.0), (-0.0, 0.0), (1, True), (True, 1), (0, False), (1.0, True), (1, 1.0)]
)
def test_numbers_that_compare_equal_and_are_not_the_same_are_told_apart(real, was, now):
    first = lines_of_step(real)
    at = next(number for number, line in enumerate(first) if '"op":"aten.relu_' in line)
    call = json.loads(first[at])
    first[at], second = json.dumps(call | {"args": [*call["args"], was]}), list(first)
    second[at] = json.dumps(call | {"args": [*call["args"], now]})
    said = Whole(0, first).differences(second)
    assert said is not None
    again = repeated([json.loads(line) for line in first], said, "here")
    assert exact(again) == exact(json.loads(line) for line in second)


def test_steps_of_another_length_are_not_compared(real):
    lines = lines_of_step(real)
    assert Whole(0, lines).differences(lines[:-1]) is None


def test_differences_as_long_as_the_step_are_not_worth_it(real):
    lines = lines_of_step(real)
    assert Whole(0, lines).differences([f'{{"note":"{number} {"x" * 50}"}}' for number in range(len(lines))]) is None


def test_equal_steps_differ_in_nothing_but_where_tensors_are_stored(real):
    lines = lines_of_step(real)
    assert Whole(0, lines).differences(lines).keys() <= {"stored"}


def test_a_setting_named_at_is_no_place(tmp_path):
    """A setting of an optimizer that happens to be called as places are."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "at": [1, 2, 3]}], 0.1)
    found = record_training(tmp_path / "t", model, optimizer, steps=3)
    assert found.program.steps[2].optimizers[0]["groups"][0]["at"] == [1, 2, 3]
