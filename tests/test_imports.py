"""Importing is cheap, the public surface is what it says, and imports point one way."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import firstdrift

PACKAGE = Path(firstdrift.__file__).parent
HEAVY = ("torch", "jax", "onnx", "yaml", "rich", "click", "safetensors", "ml_dtypes", "hypothesis", "pytest")

# Who may import whom: a module may use what stands in its own room, or in rooms of rows below.
LAYERS = [
    {"__main__"},
    {"cli", "testing"},
    {"pretrain", "demo"},
    {"decoder", "sweeping"},
    {"live"},
    {"compare"},
    {"weights"},
    {"explain"},
    {"report"},
    {"judge"},
    {"pair"},
    {"capture"},
    {"program"},
    {"store"},
    {"aprt"},
    {"core", "kernels"},
    {"errors", "_version"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_firstdrift_loads_nothing_heavy():
    modules = loaded_by("import firstdrift")
    assert not {name.split(".")[0] for name in modules} & {*HEAVY, "numpy"}


def test_using_firstdrift_loads_numpy_and_nothing_heavier():
    modules = loaded_by("import firstdrift; firstdrift.Writer, firstdrift.open_trace")
    assert "numpy" in modules
    assert not {name.split(".")[0] for name in modules} & set(HEAVY)


def test_recording_and_reading_a_plain_trace_loads_nothing_heavier(tmp_path):
    statement = (
        "import numpy as np, firstdrift as fd\n"
        f"with fd.Writer({str(tmp_path / 't')!r}) as w: w.put('x', 'fwd', np.ones(3))\n"
        f"fd.open_trace({str(tmp_path / 't')!r})"
    )
    assert not {name.split(".")[0] for name in loaded_by(statement)} & {*HEAVY} - {"safetensors"}


def test_help_loads_click_and_nothing_heavier():
    modules = loaded_by(
        "from click.testing import CliRunner\nfrom firstdrift.cli.main import cli\nCliRunner().invoke(cli, ['--help'])"
    )
    assert not {name.split(".")[0] for name in modules} & ({*HEAVY} - {"click"})


def test_every_public_name_can_be_had_and_is_documented():
    for name in firstdrift.__all__:
        value = getattr(firstdrift, name)
        assert name == "__version__" or value.__doc__, name
    assert sorted(firstdrift.__all__) == list(firstdrift.__all__)
    assert set(dir(firstdrift)) == set(firstdrift.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = firstdrift.nothing


def test_no_submodule_bears_the_name_of_a_public_function():
    modules = {path.stem for path in PACKAGE.iterdir()}
    functions = {
        "trace",
        "diff",
        "check",
        "assert_same",
        "load_weights",
        "sweep",
        "calibrate",
        "power",
        "tap",
        "estimate",
        "open_trace",
    }
    assert not modules & functions


def imported_from(path):
    """The rooms that a module imports from inside the package."""
    inside = path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = [*inside[: len(inside) - node.level], *(node.module or "").split(".")]
            yield from [target[0]] if target[0] else [alias.name for alias in node.names]


def test_imports_point_one_way():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own != "__init__":
            wrong += [f"{path.relative_to(PACKAGE)}: {name}" for name in imported_from(path) if RANK[own] > RANK[name]]
    assert not wrong


def test_every_module_says_what_it_is_for():
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("_version.py",) and path.read_text().strip():
            assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_version_is_one():
    from importlib.metadata import version

    assert version("firstdrift") == firstdrift.__version__
    assert importlib.import_module("firstdrift._version").__version__ == firstdrift.__version__


# Who runs models or writes torch's own files loads it; what compares, judges, explains and reports does not.
OUTSIDE = {
    "live", "decoder", "pretrain", "demo", "weights/loading", "weights/formats/torch_weights.py",
    "capture/tracing.py", "cli/commands/pretrain.py",
}  # fmt: skip


def imports_torch(path):
    for node in ast.walk(ast.parse(path.read_text())):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            named = [node.module]
        if any(name.split(".")[0] == "torch" for name in named):
            return True
    return False


def test_torch_is_imported_where_it_records_and_where_it_replays_alone():
    found = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if imports_torch(path)}
    inside = [path for path in found if not any(str(path).startswith(room) for room in OUTSIDE)]
    assert {"capture", "program"} <= {path.parts[0] for path in inside}
    others = [path for path in inside if path.parts[0] != "program" and path.parts[:2] != ("capture", "torch")]
    assert not others


def test_no_file_name_stands_twice():
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def test_no_folder_has_more_than_fifteen_modules():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert not [folder for folder in folders if len([*folder.glob("*.py")]) > 16]  # with its __init__
