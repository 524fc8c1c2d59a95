"""Writes the reference pages: docs/cli.md from `--help`, docs/python.md from docstrings, docs/operations.md from the
library of operations, and the table of numbers in docs/verdicts.md.

python docs/generate.py            write them
python docs/generate.py --check    say which are out of date, and exit with 1 if any is
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import firstdrift
from firstdrift.cli.main import COMMANDS, cli
from firstdrift.judge.numbers import NUMBERS, SOURCES, Number
from firstdrift.program.operations.known_operations import OPERATIONS
from firstdrift.program.operations.op_table import BY_SHAPE, REQUIRED, Operation, Setting

DOCS = Path(__file__).parent
HOW = "python docs/generate.py"
NUMBERS_BEGIN = "<!-- numbers: written by docs/generate.py from src/firstdrift/judge/numbers.py -->"
NUMBERS_END = "<!-- end of numbers -->"
WIDTH = 98  # of help texts on a wide terminal
COMMON = ("  --json  ", "  --debug  ", "  -h, --help  ", "  --version  ")

CLI_HEAD = f"""\
# Command line

Generated from `--help` by `{HOW}`. The same from Python: [python.md](python.md).

| exit code | meaning |
|---|---|
| 0 | success; of a comparison: same, noise or flip |
| 1 | drift |
| 2 | could not tell: an incomplete or unreadable trace, nothing found, a usage error |
| 3 | internal error: a bug in firstdrift |

Errors go to standard error. Every command also has `-h`, `--help` and `--debug`, which shows tracebacks. All but groups
of commands have `--json`: one strict JSON object, whose `schema` names its form, with the strings `nan`, `inf` and
`-inf` for non-finite numbers. `firstdrift --version` prints the version.
"""

OPERATIONS_HEAD = f"""\
# The library of operations

Generated from the table by `{HOW}`; edit `src/firstdrift/program/operations/`, not this page.

A trace without a [program](trace-format.md#the-program) gets one from here: `op` and `attrs` of a line, and the shapes,
give the calls that made its tensor, forward and backward. What to write so that an engine can be replayed:

- the operation: `op` on the line of its output, a name below in any case. What stands before it (`LlamaRMSNorm`) or
  around it (`torch.nn.`, `aten.`) is ignored;
- its settings: `attrs`, those that are needed and those that are not the default;
- what it reads: `in.0`, `in.1` of the same name, or `from`, in the order in which it takes them. With neither, lines
  are read as a chain;
- its weights: lines of phase `weight` under its name, ports `weight`, `bias`, `running_mean` and so on; or any weights
  among `from`;
- the optimizer: `optimizer` in trace.json, its `name`, `lr` and settings; its state as lines of phase `optim`;
- the loss: `op` on its line, and `from` with what it reads and then the target.

Nothing here is believed for being said: a call counts only where it makes the reference's recorded tensor from the
reference's recorded inputs, to noise, and a site whose call does not is a site without one. A setting that was not
recorded has the default that stands in brackets, and the program says so; where none stands, the shapes tell it, or
the operation goes without. A setting that is needed is never guessed. Where a line has no `op`, operations can be tried
for one tensor, at most 512 in a fixed order; what is found so is called inferred.
"""

PYTHON_HEAD = f"""\
# Python

Generated from docstrings by `{HOW}`. The same from a shell: [cli.md](cli.md).

`import firstdrift as fd` loads nothing heavier than numpy.
"""


def pages() -> dict[Path, str]:
    """The generated pages and what they should say."""
    return {
        DOCS / "cli.md": cli_page(),
        DOCS / "python.md": python_page(),
        DOCS / "operations.md": operations_page(),
        DOCS / "verdicts.md": verdicts_page(),
    }


def verdicts_page() -> str:
    """The page on verdicts with the table of numbers in its place."""
    before, _, rest = (DOCS / "verdicts.md").read_text("utf-8").partition(NUMBERS_BEGIN)
    _, _, after = rest.partition(NUMBERS_END)
    rows = ["| number | value | unit | source | test |", "|---|---|---|---|---|", *map(_number, NUMBERS)]
    sources = [f"- {name}: {meaning}" for name, meaning in SOURCES.items()]
    return "\n".join([before + NUMBERS_BEGIN, *sources, "", *rows, NUMBERS_END]) + after


def _number(one: Number) -> str:
    test = f"`{one.test}`" if one.test else ""
    return f"| `{one.where}.{one.name}` | {_value(one.value)} | {one.unit} | {one.source} | {test} |"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_value, value))
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return _value({field: getattr(value, field) for field in value.__dataclass_fields__})


def operations_page() -> str:
    """The table of the library."""
    rows = ["| operation | reads | settings |", "|---|---|---|", *map(_operation, OPERATIONS), ""]
    return "\n".join([OPERATIONS_HEAD, *rows])


def _operation(one: Operation) -> str:
    reads = {0: "1 or more", -1: "2 or more"}.get(one.inputs, str(one.inputs))
    ports = f", {', '.join(f'`{port}`' for port in one.ports)}" if one.ports else ""
    settings = ", ".join(_setting(setting) for setting in one.settings)
    return f"| {', '.join(f'`{name}`' for name in one.names)} | {reads}{ports} | {settings} |"


def _setting(one: Setting) -> str:
    names = "`, `".join(one.names)
    value = list(one.default) if isinstance(one.default, tuple) else one.default
    default = " (needed)" if one.default is REQUIRED else "" if one.default is BY_SHAPE else f" ({value})"
    return f"`{names}`{default}"


def cli_page() -> str:
    """The reference of every command, as `--help` prints it on a terminal of 100 columns or more."""
    root = click.Context(cli, info_name="firstdrift", **(cli.context_settings | {"terminal_width": WIDTH}))
    parts = [CLI_HEAD, _help(cli.get_help(root))]
    for name in sorted(COMMANDS):
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, parent=root, info_name=name)
        parts += [f"## {name}\n", _help(command.get_help(context))]
        for inner in command.list_commands(context) if isinstance(command, click.Group) else ():
            part = command.get_command(context, inner)
            assert part is not None
            said = part.get_help(click.Context(part, parent=context, info_name=inner))
            parts += [f"### {name} {inner}\n", _help(said)]
    return "\n".join(parts)


def _help(text: str) -> str:
    """What --help prints, without the options that every command has, which the head of the page names."""
    lines = [line for line in text.rstrip().split("\n") if not line.startswith(COMMON)]
    shown = "\n".join(lines).replace("Options:\n\nCommands:", "Commands:").removesuffix("\n\nOptions:")
    return f"```text not run: generated from --help\n{shown}\n```\n"


def python_page() -> str:
    """The reference of every public name."""
    public = {name: getattr(firstdrift, name) for name in firstdrift.__all__}
    errors = {name: item for name, item in public.items() if _is_error(item)}
    classes = {name: item for name, item in public.items() if inspect.isclass(item) and name not in errors}
    functions = {name: item for name, item in public.items() if inspect.isfunction(item)}
    modules = {name: item for name, item in public.items() if inspect.ismodule(item)}
    constants = public.keys() - {*errors, *classes, *functions, *modules}
    parts = [PYTHON_HEAD, "## Functions\n"]
    parts += [_entry(f"fd.{name}", item) for name, item in functions.items()]
    parts += ["## Classes\n", *(_class(f"fd.{name}", item) for name, item in classes.items())]
    parts += ["## Errors\n", _errors(errors)]
    for name, module in modules.items():
        parts += [f"## Module `fd.{name}`\n", inspect.cleandoc(module.__doc__ or "") + "\n"]
        for own, item in _own_names(module, public):
            parts.append((_class if inspect.isclass(item) else _entry)(f"fd.{name}.{own}", item))
    parts += ["## Constants\n", *(f"- `fd.{name}`: `{type(public[name]).__name__}`\n" for name in sorted(constants))]
    return "\n".join(parts)


def _is_error(item: object) -> bool:
    return inspect.isclass(item) and issubclass(item, Exception)


def _own_names(module: ModuleType, public: Iterable[str]) -> list[tuple[str, Any]]:
    """Classes and functions that a module defines and that are not public by themselves."""
    return [
        (name, item)
        for name, item in vars(module).items()
        if getattr(item, "__module__", None) == module.__name__ and name[0] != "_" and name not in public
    ]


def _entry(name: str, function: Callable[..., Any]) -> str:
    return f"### `{name}`\n\n`{_signature(name, function)}`\n\n{inspect.getdoc(function)}\n"


def _class(name: str, item: type) -> str:
    head = ", ".join(f"`{one.name}`" for one in item) if issubclass(item, Enum) else f"`{_signature(name, item)}`"
    parts = [f"### `{name}`\n\n{head}\n\n{inspect.getdoc(item)}\n"]
    properties, methods = [], []
    for own, member in vars(item).items():
        if own.startswith("_"):
            continue
        if isinstance(member, property):
            properties.append(f"- `.{own}`: {_line(member)}")
        elif inspect.isroutine(member):
            methods.append(f"- `.{_signature(own, getattr(item, own))}`: {_line(member)}")
    return "\n".join([*parts, *properties, *methods, *([""] if properties or methods else [])])


def _line(item: object) -> str:
    return (inspect.getdoc(item) or "").replace("\n", " ")


def _errors(errors: dict[str, type]) -> str:
    rows = ["| error | is also | meaning |", "|---|---|---|"]
    for name, item in errors.items():
        bases = ", ".join(f"`{base.__name__}`" for base in item.__bases__)
        rows.append(f"| `fd.{name}` | {bases} | {(inspect.getdoc(item) or '').rstrip('.')} |")
    return "\n".join([*rows, ""])


def _signature(name: str, callable_: Callable[..., Any]) -> str:
    """`name(parameters) -> result`; the types of parameters are for editors, which read them from the source."""
    shown: list[str] = []
    starred = False
    for parameter in inspect.signature(callable_).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        shown.append(str(parameter.replace(annotation=parameter.empty)))
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
    result = "" if inspect.isclass(callable_) else f" -> {_annotation(inspect.signature(callable_).return_annotation)}"
    return f"{name}({', '.join(shown)}){result}"


def _annotation(annotation: object) -> str:
    """The annotation as it is written in the source, whichever form this Python keeps it in."""
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or inspect.formatannotation(annotation)


def main() -> int:
    """Write the pages, or compare them."""
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            click.echo(f"docs/{path.name} is out of date; run: {HOW}", err=True)
        return 1 if stale else 0
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
