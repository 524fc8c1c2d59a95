"""Every id of the contracts whose behaviours these are is borne by a test; the ids that are not are listed here."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
CONTRACTS = {
    "FALSIFY-APR-TRACE-SAVE-": 11,
    "FALSIFY-APR-PRETRAIN-INIT-": 10,
    "FALSIFY-APR-PRETRAIN-ARCH-": 10,
}
OTHERS = {
    "FALSIFY-INIT-ARCH-MATCH-001", "FALSIFY-APR-PRETRAIN-INIT-CUDA-001", "FALSIFY-TAH-001",
    "FALSIFY-APR-PRETRAIN-INIT-POPULATE-COVERAGE-001", "FALSIFY-APR-PRETRAIN-INIT-POPULATE-COVERAGE-002",
    "GATE-GPUTRAIN-002",
}  # fmt: skip
IDS = {f"{prefix}{number:03}" for prefix, count in CONTRACTS.items() for number in range(1, count + 1)} | OTHERS
# That a contract's own YAML is valid is asked of the validator of contracts, which is not here.
WITHOUT_A_TEST = {f"{prefix}008" for prefix in CONTRACTS}


def borne():
    """The ids that tests bear, each with the tests that do."""
    found = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for identifier in marks(node):
                    found.setdefault(identifier, []).append(f"{file.name}::{node.name}")
    return found


def marks(function):
    """The ids of `@pytest.mark.falsifies(...)` over a function."""
    return [
        argument.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.falsifies"
        for argument in decorator.args
    ]


def test_every_id_is_borne_by_a_test_but_for_those_that_are_listed():
    assert IDS - set(borne()) == WITHOUT_A_TEST


def test_tests_bear_no_id_that_is_in_no_contract():
    assert set(borne()) <= IDS


def test_a_bearer_is_collected_as_a_test():
    assert all(one.split("::")[1].startswith("test_") for tests in borne().values() for one in tests)
