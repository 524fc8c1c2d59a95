"""Documentation that cannot rot: every fenced block is executed, or says in its info string why not.

```python          executed; blocks of a page share their names and one empty directory, in order
```text            directly after a python block: what that block prints, to the letter; without one it prints nothing
```console         every line that begins with `$ ` is run by a shell there, and must print the lines below it
```c file=PATH     the file PATH of the repository, to the letter; it is put into the directory
```c file=PATH part  lines of that file, to the letter; the whole file is put into the directory
```python file=NAME, ```yaml file=NAME    a file that is put into the directory, for the blocks that follow
```json            a trace.json that the reader accepts
```jsonl           lines of an index.jsonl that the reader accepts
``` ... not run: REASON

When a command rightly prints something else, `FIRSTDRIFT_REWRITE_DOCS=1 pytest tests/test_docs.py` puts what is true
into the pages.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift import errors
from firstdrift.cli.main import COMMANDS, cli
from firstdrift.compare.open_trace import BUILT_IN
from firstdrift.core import dtypes, records, sites, stages
from firstdrift.core.records import parse_record
from firstdrift.store import layout, writer
from firstdrift.store.formats.site_keys import PHASE_ALIASES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TRACE_FORMAT = ROOT / "docs" / "trace-format.md"
FORMATS = ROOT / "docs" / "formats.md"
PROGRAM_FORMAT = ROOT / "src" / "firstdrift" / "program" / "written" / "README.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "bench" / "README.md",
    PROGRAM_FORMAT,
]
WRITTEN_BY_HAND = [page for page in PAGES if page.name not in ("cli.md", "python.md")]
C_PROGRAM = ROOT / "examples" / "write_trace.c"
REWRITE = "if that is right: FIRSTDRIFT_REWRITE_DOCS=1 .venv/bin/pytest tests/test_docs.py, and read what changed"
STRICT_C = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


by_name = pytest.mark.parametrize("page", PAGES, ids=_name)
by_name_by_hand = pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=_name)


class Block(NamedTuple):
    """A fenced block: where its content begins, its info string, its content, whether it directly follows another."""

    line: int
    info: str
    text: str
    follows_block: bool

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def reason(self) -> str | None:
        _, found, reason = self.info.partition("not run: ")
        return reason if found else None


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    lines = text.split("\n")
    start, between = None, ["start of page"]
    for number, line in enumerate(lines):
        if start is None and line.startswith("```"):
            start = number
        elif start is not None and line == "```":
            content = "".join(f"{inside}\n" for inside in lines[start + 1 : number])
            yield Block(start + 2, lines[start][3:], content, not any(map(str.strip, between)))
            start, between = None, []
        elif start is None:
            between.append(line)
    assert start is None, f"the block of line {(start or 0) + 1} has no end"


class Runner:
    """Executes the blocks of one page in the current directory, and keeps what each of them should show."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, object] = {"__name__": "__docs__"}
        self.true: list[tuple[Block, str]] = []  # blocks that show something, and what that is in truth
        self.waiting: tuple[str, str] | None = None  # where a python block stands, and what it printed

    def run(self) -> None:
        for block in blocks(self.page.read_text("utf-8")):
            if self.waiting and block.info == "text" and block.follows_block:
                self.true.append((block, self.waiting[1]))
                self.waiting = None
                continue
            self._nothing_is_hidden()
            if block.reason is None:
                self._execute(block)
            else:
                assert len(block.reason.split()) >= 2, f"{self._place(block)}: 'not run' needs a reason"
        self._nothing_is_hidden()

    def compare(self) -> None:
        for block, true in self.true:
            if block.text != true:
                lines = difflib.unified_diff(block.text.split("\n"), true.split("\n"), "shown", "true", "", "", 9, "")
                difference = "\n".join(lines)
                pytest.fail(f"{self._place(block)}: shows something else; {REWRITE}\n{difference}", pytrace=False)

    def rewrite(self) -> None:
        lines = self.page.read_text("utf-8").split("\n")
        for block, true in reversed(self.true):
            lines[block.line - 1 : block.line - 1 + block.text.count("\n")] = true.split("\n")[:-1]
        self.page.write_text("\n".join(lines), "utf-8")

    def _place(self, block: Block) -> str:
        return f"{self.page.name}, line {block.line}"

    def _nothing_is_hidden(self) -> None:
        place, printed = self.waiting or ("", "")
        assert not printed, f"{place}: prints and the page does not show it:\n{printed}"
        self.waiting = None

    def _execute(self, block: Block) -> None:
        language, _, file = block.info.partition(" file=")
        handlers = {"console": self._console, "json": self._json, "jsonl": self._jsonl, "python": self._python}
        if file:
            self._file(block, file)
        elif language in handlers:
            handlers[language](block)
        else:
            place = self._place(block)
            pytest.fail(f"{place}: a block ```{block.info} is not executed; say why with 'not run: REASON'")

    def _python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(self.page), "exec")  # errors name the page's line
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.names)
        self.waiting = self._place(block), printed.getvalue()

    def _console(self, block: Block) -> None:
        assert block.text.startswith("$ "), f"{self._place(block)}: a console block begins with a command"
        commands = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
        self.true.append((block, "".join(f"$ {command}\n{_shell(command)}" for command in commands)))

    def _file(self, block: Block, file: str) -> None:
        text = block.text
        file, _, part = file.partition(" ")
        if block.language == "c":
            text = (ROOT / file).read_text("utf-8")
            if part:
                assert block.text in text, f"{self._place(block)}: these lines are not in {file}"
            else:
                self.true.append((block, text))
        Path(Path(file).name).write_text(text, "utf-8")

    def _json(self, block: Block) -> None:
        layout.parse_header(block.text, Path(self._place(block)))

    def _jsonl(self, block: Block) -> None:
        for line in map(json.loads, block.text.splitlines()):
            assert "end" in line or parse_record(line)


def _install(project: dict[str, Any]) -> None:
    """Leave what installing a package in the current directory would leave: its name and its entry points."""
    metadata = Path(f"{project['name']}-{project['version']}.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def _shell(command: str) -> str:
    """What a command prints on both streams, where the commands of this environment come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    packages = os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])])  # where blocks put packages
    ours = {"PATH": path, "PYTHONPATH": packages, "COLUMNS": "100", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, shell=True, env=os.environ | ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    return done.stdout


@by_name
def test_every_block_does_what_the_page_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = Runner(page)
    runner.run()
    if "FIRSTDRIFT_REWRITE_DOCS" in os.environ:
        runner.rewrite()
    else:
        runner.compare()


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "shows something else"),
        ("```python\nprint(1)\n```\n", "prints and the page does not show it"),
        ("```python\nprint(1)\n```\n\nprose\n\n```text\n1\n```\n", "prints and the page does not show it"),
        ("```python\n1 / 0\n```\n", "division by zero"),
        ("```console\n$ echo a\nb\n```\n", "shows something else"),
        ("```console\n$ echo a\na\n$ echo b\n```\n", "shows something else"),
        ("```c file=examples/write_trace.c\nint main(void) {}\n```\n", "shows something else"),
        ("```c file=examples/write_trace.c part\nint main(void) {}\n```\n", "are not in examples/write_trace.c"),
        ('```json\n{"format": "firstdrift-trace", "version": 2}\n```\n', "format version 2"),
        ('```jsonl\n{"phase": "fwd", "name": "a"}\n```\n', "has no 'dtype'"),
        ("```text\nanything\n```\n", "is not executed"),
        ("```\nanything\n```\n", "is not executed"),
        ("```sh not run: why\nanything\n```\n", "needs a reason"),
        ("```python\n", "has no end"),
    ],
)
def test_a_page_that_lies_is_caught(page: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(BaseException, match=complaint):  # pytest.fail raises no Exception
        runner = Runner(tmp_path / "page.md")
        runner.run()
        runner.compare()


# The C program of the format page.


@pytest.fixture(scope="module")
def c_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.fail("gcc is not installed, so nobody knows whether examples/write_trace.c works; install gcc")
    program = tmp_path_factory.mktemp("c") / "write_trace"
    done = subprocess.run([gcc, *STRICT_C, "-o", program, C_PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def test_the_c_program_writes_a_whole_trace(c_writer: Path, tmp_path: Path) -> None:
    subprocess.run([c_writer, tmp_path], check=True)
    trace = fd.open_trace(tmp_path)
    x = np.array([[-1, 2, -0.5], [0.25, 3, -4]], np.float32)
    assert trace.complete, trace.problems
    assert [record.site for record in trace] == [fd.Site(0, "input", "input", "x"), fd.Site(0, "fwd", "relu1", "out")]
    for record, expected in zip(trace, (x, np.maximum(x, 0)), strict=True):
        array = trace.array(record)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, expected)
        assert record.at is not None
        assert record.at[1] % layout.ALIGNMENT == 0


def test_the_c_program_writes_over_its_own_trace(c_writer: Path, tmp_path: Path) -> None:
    subprocess.run([c_writer, tmp_path], check=True)
    subprocess.run([c_writer, tmp_path], check=True)
    assert fd.open_trace(tmp_path).complete


def test_the_c_program_ends_with_an_error_when_it_cannot_write(c_writer: Path, tmp_path: Path) -> None:
    assert subprocess.run([c_writer], capture_output=True).returncode == 1
    missing = subprocess.run([c_writer, tmp_path / "missing"], capture_output=True, text=True)
    assert (missing.returncode, "missing/index.jsonl" in missing.stderr) == (1, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_the_c_program_writes_no_line_for_data_that_did_not_fit(c_writer: Path, tmp_path: Path) -> None:
    (tmp_path / "data-00000.bin").symlink_to("/dev/full")
    assert subprocess.run([c_writer, tmp_path], capture_output=True).returncode == 1
    assert (tmp_path / "index.jsonl").read_bytes() == b""


def test_the_page_compiles_the_c_program_with_the_strict_flags() -> None:
    command = f"gcc {' '.join(STRICT_C)} -o write_trace write_trace.c"
    assert f"$ {command}\n" in TRACE_FORMAT.read_text("utf-8")
    assert command in C_PROGRAM.read_text("utf-8")


# The format of the formats page.


def test_the_example_of_a_format_keeps_every_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (ROOT / "examples" / "format").glob("*.*"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    _install(tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"])
    with fd.Writer("run") as w:
        w.put("conv1", "fwd", np.ones(3, np.float32))
        w.put_absent("conv1", "grad", "no gradient")
    assert _shell("pytest -q test_hexjson.py > report && echo kept") == "kept\n"
    printed = _shell("firstdrift export run run.hex.json --format hexjson")
    assert printed.splitlines()[1:] == ["  lines without values (1) and optional keys were left out"], printed
    assert _shell("firstdrift show run.hex.json").startswith("run.hex.json: hexjson, 1 site, 12 B, complete")


# Generated pages.


def _generate():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "python.md", "operations.md", "json.md"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    path = ROOT / "docs" / name
    expected = _generate().pages()[path]
    found = path.read_text("utf-8") if path.is_file() else ""
    if found != expected:
        difference = "\n".join(difflib.unified_diff(found.split("\n"), expected.split("\n"), "page", "code", n=1))
        pytest.fail(f"docs/{name} is out of date; run: .venv/bin/python docs/generate.py\n{difference}", pytrace=False)


# Completeness: what exists is documented, and what is documented exists.


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name in COMMANDS:
        assert f"## {name}\n" in text
        assert f"`firstdrift {name}" in _prose(README) + README.read_text("utf-8").replace("$ ", "`"), name
    for option in _options():
        assert option in text


def test_every_public_name_is_documented() -> None:
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    missing = [name for name in fd.__all__ if f"`fd.{name}`" not in text]
    assert not missing


def test_every_error_class_is_documented() -> None:
    classes = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert classes
    assert classes <= set(fd.__all__)
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert not [name for name in classes if f"- `fd.{name}`" not in text]


def test_every_index_key_is_documented() -> None:
    keys = {*records.CORE_KEYS, *records._CHECKS, "sketch", "end"}
    core = {row[0].strip("`") for row in _rows(TRACE_FORMAT) if len(row) == 4}
    optional = re.findall(r"^- (`[^:]+):", TRACE_FORMAT.read_text("utf-8"), re.MULTILINE)
    described = core | {name for names in optional for name in re.findall(r"`(\w+)`", names)}
    assert keys <= described, keys - described


def test_the_defaults_of_index_keys_are_documented_as_they_are() -> None:
    said = {row[0].strip("`"): row[2] for row in _rows(TRACE_FORMAT) if len(row) == 4}
    site = parse_record({"phase": "fwd", "name": "a", "dtype": "f32", "shape": [], "at": [0, 0, 4]}).site
    assert {key: said[key] for key in ("step", "call", "sample")} == {"step": "0", "call": "0", "sample": "null"}
    assert (site.step, site.call, site.sample) == (0, 0, None)
    for key in ("phase", "name", "dtype", "shape"):
        assert said[key] == "required"


def test_every_header_key_is_documented(tmp_path: Path) -> None:
    fd.Writer(tmp_path).close()
    said = json.loads((tmp_path / "trace.json").read_text())
    assert said.keys() <= {name for cell in _first_column(TRACE_FORMAT) for name in re.findall(r"\w+", cell)}


def test_the_phases_are_documented_in_causal_order_with_their_default_ports() -> None:
    rows = [row for row in _rows(TRACE_FORMAT) if row[0].strip("`") in sites.PHASE_RANK]
    assert [row[0].strip("`") for row in rows] == list(sites.PHASES)
    ports = [sites.default_port(phase) if phase != "optim" else "none: give one" for phase in sites.PHASES]
    assert [row[-1].strip("`") for row in rows] == ports


def test_every_dtype_is_documented_with_its_size() -> None:
    rows = {row[0]: row[1] for row in _rows(TRACE_FORMAT) if row[0].isdigit()}
    said = {name: int(size) for size, names in rows.items() for name in re.findall(r"`(\w+)`", names)}
    assert said == dict(dtypes.ITEMSIZE)


def test_the_limits_are_documented_as_they_are() -> None:
    limits = {row[0]: row[1] for row in _rows(TRACE_FORMAT)}
    mebi = 1 << 20
    assert limits["characters of a name, port or alias"] == f"{sites.MAX_NAME:,}"
    assert limits["step, call, sample, order, layer, file number, offset"] == "2^63 - 1"
    assert sites.MAX_INDEX == 2**63 - 1
    assert limits["dimensions of a tensor"] == str(records.MAX_DIMS)
    assert limits["bytes of an index line"] == f"{layout.MAX_LINE // mebi} MiB"
    assert limits["bytes of trace.json"] == f"{layout.MAX_HEADER // mebi} MiB"
    assert limits["ranks of a run"] == f"{layout.MAX_RANKS:,}"
    assert limits["alignment of a tensor"] == f"{layout.ALIGNMENT} bytes"
    assert limits["a new data file once one passes"] == f"{layout.DATA_FILE_BYTES // (1 << 30)} GiB"
    assert limits["bytes that background writing may hold"] == f"{writer.QUEUE_BYTES // mebi} MiB"


def test_every_format_stage_and_phase_alias_is_documented() -> None:
    text = FORMATS.read_text("utf-8")
    for name in (*stages.STAGES, *stages.ALIASES, *BUILT_IN):
        assert f"`{name}`" in text, name
    for alias, phase in PHASE_ALIASES.items():
        assert f"`{alias}` means `{phase}`" in " ".join(text.split()), alias
    for name in BUILT_IN:
        assert f"| `{name}` |" in text, name


def test_the_stage_table_is_the_one_in_the_code() -> None:
    rows = [row for row in _rows(FORMATS) if row[0].strip("`") in stages.PRODUCERS and len(row) == 2]
    said = {row[0].strip("`"): set(re.findall(r"`(\w+)`|(layer input)", row[1])) for row in rows}
    coded = {
        stage: {("", "layer input") if producer == stages.INPUT else (producer, "") for producer in producers}
        for stage, producers in stages.PRODUCERS.items()
    }
    assert said == coded
    assert list(said) == sorted(stages.STAGES, key=stages.EXECUTION_RANK.__getitem__)


@by_name_by_hand
def test_no_page_names_what_does_not_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    unknown_names = set(re.findall(r"\bfd\.(\w+)", text)) - set(fd.__all__)
    assert not unknown_names
    code = _prose(page) + "\n" + "\n".join(re.findall(r"^\$ (.*)", text, re.MULTILINE))
    unknown_commands = set(re.findall(r"\bfirstdrift ([a-z][\w-]*)", code)) - COMMANDS.keys()
    assert not unknown_commands
    unknown_options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - _options() - _options_of_the_port()
    assert not unknown_options


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=_name)
def test_links_between_files_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_fences(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.is_file(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in _anchors(file), f"{page.name}: {target} names no heading of {file.name}"


def test_the_readme_leads_to_every_page() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", README.read_text("utf-8"))
    pages = [_name(page) for page in PAGES[1:] if page != PROGRAM_FORMAT]
    assert not {*pages, "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "examples/write_trace.c"} - set(targets)


def test_the_makefile_has_every_target_that_the_readme_names() -> None:
    readme, makefile = README.read_text("utf-8"), (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", readme, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert not [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)]


def test_make_demo_runs_the_demo_that_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/firstdrift demo$", makefile, re.MULTILINE)
    shown = README.read_text("utf-8")
    printed = CliRunner().invoke(cli, ["demo", "--bug", "relu-mask", "--batches", "1", "--batch", "2"]).output
    for stable in ("batch  clips     grad ln1  flips  verdict", "first drift is agrad ln3 (sample 0), introduced by"):
        assert stable in shown
        assert stable in printed


@by_name
def test_no_page_holds_a_path_of_one_machine(page: Path) -> None:
    assert not re.findall(r"/(?:home|root|work|tmp|Users)/\S*", page.read_text("utf-8"))


def _options() -> set[str]:
    context = cli.make_context("firstdrift", [], resilient_parsing=True)
    commands = [cli, *(cli.get_command(context, name) for name in COMMANDS)]
    groups = [command for command in commands[1:] if isinstance(command, click.Group)]
    commands += [group.get_command(context, name) for group in groups for name in group.list_commands(context)]
    return {
        option
        for command in commands
        for parameter in command.get_params(context)  # type: ignore[union-attr]
        for option in parameter.opts
        if option.startswith("--")
    }


def _options_of_the_port() -> set[str]:
    """Those of the C port and of its PyTorch twin, which have command lines of their own."""
    sources = ROOT / "src" / "firstdrift" / "demo"
    return {o for name in ("main.c", "twin.py") for o in re.findall(r'"(--[a-z]+)"', (sources / name).read_text())}


def _without_fences(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def _prose(page: Path) -> str:
    """What stands in backquotes outside of blocks, each with its opening backquote."""
    return "\n".join(re.findall(r"(`[^`\n]+)`", _without_fences(page)))


def _rows(page: Path) -> list[list[str]]:
    """The rows of all tables."""
    lines = [line for line in _without_fences(page).split("\n") if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def _first_column(page: Path) -> set[str]:
    return {row[0].strip("`") for row in _rows(page)}


def _anchors(page: Path) -> set[str]:
    """The anchors GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", _without_fences(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_that_the_architecture_names_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = [
        name
        for name in re.findall(r"`([a-z_/.]+(?:/|\.py|\.c|\.toml))`", page)
        if not name.startswith(("src", "tests"))
    ]
    assert len(named) > 30
    found = {
        path.relative_to(ROOT / "src" / "firstdrift").as_posix() for path in (ROOT / "src" / "firstdrift").rglob("*")
    }
    assert not [name for name in named if not any(f"/{one}".endswith(f"/{name.rstrip('/')}") for one in found)]
