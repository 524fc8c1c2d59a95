"""`firstdrift diff`, as people and CI see it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift.cli.commands import diff as cli_diff
from firstdrift.cli.main import cli
from firstdrift.compare import comparison

OPTIONS = {
    "--map": ("map", "m.yaml"),
    "--only": ("only", "a*"),
    "--phase": ("phases", "fwd"),
    "--ignore": ("ignore", "b*"),
    "--allow-missing": ("allow_missing", "c*"),
    "--truth": ("truth", "t"),
    "--reference-reduction": ("reference_reduction", "mean"),
    "--candidate-reduction": ("candidate_reduction", "sum"),
    "--batch": ("batch", "32"),
    "--order": ("order", "probes.txt"),
}


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, ["diff", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def record(path, *, scale=1.0, noise=0.0, extra=False, spoil=False, name="fc"):
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    with fd.Writer(path, producer="test") as writer:
        writer.put("input", "input", x, port="x")
        writer.put(f"{name}1", "fwd", x * np.float32(1 + noise), op="Linear")
        out = x * np.float32(2 * scale)
        if spoil:
            out[3, 3] = np.nan
        writer.put(f"{name}2", "fwd", out, op="Linear")
        if extra:
            writer.put("tap", "fwd", x)


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record("ref")
    record("same")
    record("noise", noise=2**-23)
    record("drift", scale=1.5)
    record("nan", spoil=True)
    record("more", extra=True)
    with fd.Writer("empty", producer="test"):
        pass
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "candidate", "code", "verdict"),
    [
        ("ref", "same", 0, "same"),
        ("ref", "noise", 0, "noise"),
        ("ref", "drift", 1, "drift"),
        ("ref", "nan", 1, "drift"),
        ("ref", "more", 0, "same"),
        ("more", "ref", 2, "same"),
        ("ref", "empty", 2, "not comparable"),
        ("empty", "empty", 2, "not comparable"),
    ],
)
def test_the_exit_code_is_the_verdict_in_text_in_json_and_quietly(traces, reference, candidate, code, verdict):
    assert run(reference, candidate, code=code).output.startswith(verdict)
    quiet = run(reference, candidate, "--quiet", code=code).output
    assert quiet.startswith(verdict)
    assert quiet.count("\n") == 1
    said = json.loads(run(reference, candidate, "--json", code=code).output, parse_constant=pytest.fail)
    assert (said["schema"], said["verdict"], said["exit_code"]) == ("firstdrift-diff-v1", verdict, code)


def test_the_report_names_the_first_drift_within_80_columns(traces):
    output = run("ref", "drift", code=1).output
    assert "\nfirst drift    fwd fc2:out\n" in output
    assert "\n> fwd " in output
    assert max(map(len, output.split("\n"))) <= 80


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_reaches_the_comparison_under_its_name(traces, monkeypatch, option):
    asked = {}

    def diff(reference, candidate, **options):
        inspect.signature(comparison_diff).bind(reference, candidate, **options)
        asked.update(options, reference=reference, candidate=candidate)
        return comparison_diff("ref", "same")

    comparison_diff = comparison.diff
    monkeypatch.setattr(comparison, "diff", diff)
    key, value = OPTIONS[option]
    run("ref", "same", option, value)
    repeated = ("only", "phases", "ignore", "allow_missing")
    assert asked[key] == ((value,) if key in repeated else int(value) if key == "batch" else value)
    assert (asked["reference"], asked["candidate"]) == ("ref", "same")
    untouched = {key for key, _ in OPTIONS.values()} - {key}
    assert all(asked[key] in (None, ()) for key in untouched)
    assert (asked["rule"], asked["abs_floor"], asked["verify"]) == ("noise", 1e-4, False)


def test_flags_and_the_rule_reach_the_comparison(traces, monkeypatch):
    asked = {}
    comparison_diff = comparison.diff
    monkeypatch.setattr(comparison, "diff", lambda *a, **o: asked.update(o) or comparison_diff("ref", "same"))
    run("ref", "same", "--verify", "--rule", "jump", "--abs-floor", "0.5", "--only", "a", "--only", "b")
    assert (asked["verify"], asked["rule"], asked["abs_floor"], asked["only"]) == (True, "jump", 0.5, ("a", "b"))


def test_selections_work_and_one_that_matches_nothing_says_so(traces):
    assert run("ref", "drift", "--ignore", "fc2").output.startswith("same")
    assert run("ref", "drift", "--only", "fc1").output.startswith("same")
    assert "matches nothing" in run("ref", "drift", "--only", "nowhere", code=2).output
    assert "matches nothing" in run("ref", "drift", "--phase", "grad", code=2).output
    run("more", "ref", "--allow-missing", "tap")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ref", "nowhere"], "firstdrift: nowhere: cannot open it (No such file or directory); check the path"),
        (["ref"], "Missing argument 'CAND'"),
        (["ref", "same", "--rule", "mean"], "'mean' is not one of 'noise', 'jump'"),
        (["ref", "same", "--batch", "0"], "0 is not in the range x>=1"),
        (["ref", "same", "--limit", "-1"], "-1 is not in the range x>=0"),
        (["ref", "same", "--abs-floor", "1"], "--abs-floor belongs to --rule jump; add that, or drop it"),
        (["ref", "same", "--rule", "jump", "--abs-floor", "nan"], "nan is not a finite number"),
        (["ref", "same", "--values", "--ranked"], "is no APRT stage file and no checkpoint"),
        (["ref", "same", "--values"], "firstdrift: ref: is no APRT stage file and no checkpoint, of which --values"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(traces, arguments, message):
    assert message in run(*arguments, code=2).output


def test_ranked_and_limit_shape_the_table(traces):
    assert "made here" in run("ref", "drift", "--ranked", code=1).output
    record("both", scale=1.5, noise=2**-23)
    output = run("ref", "both", "--limit", "1", code=1).output
    assert "\n> fwd " in output
    assert "1 pairs that differ are not shown; --limit 3 shows all" in output


def test_a_written_map_is_read_back_and_never_overwritten(traces):
    record("other", name="dense")
    assert run("ref", "other").output.startswith("same")  # found without a map, by what is computed
    Path("m.yaml").write_text("version: 1\npairs:\n  fc{}: {candidate: 'dense{}', tolerance: 0.125}\n")
    result = run("ref", "other", "--map", "m.yaml", "--write-map", "out.yaml")
    assert result.stderr == "out.yaml: map of 3 pairs written; edit it and pass it by --map\n"
    assert result.stdout.startswith("same")
    written = Path("out.yaml").read_text()
    assert "0.125" in written  # what only the map knows is kept
    assert run("ref", "other", "--map", "out.yaml").output.startswith("same")
    assert "out.yaml: exists, and may have been edited" in run("ref", "other", "--write-map", "out.yaml", code=2).output
    assert Path("out.yaml").read_text() == written


def test_values_of_two_stage_files(traces):
    a = fd.write_stage_file("a", 0, "ffn_out", [1, 2, 3, 4])
    b = fd.write_stage_file("b", 0, "ffn_out", [1, 2.5, 3, 4])
    output = run("--values", a, b, "--limit", "2", code=1).output
    assert output.startswith("drift: relative L2 error 9.1e-02 is beyond float32 noise")
    assert "top 2:\n" in output
    said = json.loads(run("--values", a, b, "--limit", 0, "--json", code=1).output, parse_constant=pytest.fail)
    assert (said["schema"], said["max_abs_diff"], len(said["top_diffs"])) == ("apr-stage-diff-v1", 0.5, 1)
    assert len(json.loads(run("--values", a, a, "--json").output)["top_diffs"]) == 4
    assert run("--values", a, a, "--quiet").output == "same: all 4 values are bit-equal\n"


def test_options_about_sites_are_refused_with_values(traces):
    a = fd.write_stage_file("a", 0, "ffn_out", [1, 2, 3, 4])
    for option in (["--ranked"], ["--map", "x"], ["--only", "x"]):
        said = run("--values", a, a, *option, code=2).output
        assert f"--values compares two stage files, and {option[0]} is for traces; drop it" in said


@pytest.mark.parametrize(
    ("layer", "values", "message"),
    [(0, [1], "dim_product mismatch: "), (1, [1, 2], "layer mismatch: "), (1, [1], "dim_product mismatch: ")],
)
def test_values_of_another_layer_or_size_are_exit_code_2(traces, layer, values, message):
    a = fd.write_stage_file("a", 0, "ffn_out", [1, 2])
    b = fd.write_stage_file("b", layer, "ffn_out", values)
    result = run("--values", a, b, "--json", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"firstdrift: {message}")
    assert all(str(path) in result.stderr for path in (a, b))


def test_a_log_has_no_colour_and_any_encoding_can_be_printed_to(traces):
    record("wide", scale=1.5, name="层")
    record("wide-ref", name="层")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"}
    code = "from firstdrift.cli.main import main; main()"
    command = [sys.executable, "-c", code, "diff", "wide-ref", "wide"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert b"\x1b" not in done.stdout
    assert rb"\u5c422:out" in done.stdout


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_a_terminal_gets_colour_unless_no_color_is_set(traces, environment, coloured):
    import pty

    code = "from firstdrift.cli.main import main; main()"
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "diff", "ref", "drift", "--quiet"],
            stdout=theirs, env={**kept, "TERM": "xterm", **environment}, check=False,
        )  # fmt: skip
        said = os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 1
    assert (b"\x1b[31m" in said) is coloured


def test_the_bar_counts_the_bytes_of_both_sides_and_only_on_a_terminal(traces, monkeypatch):
    assert cli_diff._bytes_on_disk("ref", "same") == 0
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    on_disk = sum(file.stat().st_size for name in ("ref", "same") for file in Path(name).iterdir())
    assert cli_diff._bytes_on_disk("ref", "same") == on_disk


@pytest.mark.parametrize(("candidate", "unused"), [("same", {"torch"}), ("drift", set())])
def test_a_plain_comparison_loads_neither_rich_nor_yaml_and_torch_only_in_doubt(traces, candidate, unused):
    heavy = {"rich", "yaml", "safetensors", "hypothesis"} | unused
    code = (
        "import sys\nfrom firstdrift.cli.main import cli\n"
        f"try:\n    cli(['diff', 'ref', {candidate!r}])\nexcept SystemExit: pass\n"
        f"print(*sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


def test_a_clean_comparison_loads_nothing_that_explains_differences(traces):
    code = (
        "import sys\nfrom firstdrift.cli.main import cli\n"
        "try:\n    cli(['diff', 'ref', 'same'])\nexcept SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.startswith('firstdrift.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = {name.split(".")[1] for name in done.stderr.split()}
    assert not parts & {"explain", "program", "capture", "live", "aprt", "weights"}
    judge = {name.split(".")[-1] for name in done.stderr.split() if name.startswith("firstdrift.judge.")}
    assert "judging" in judge
    assert not judge & {"calibrated", "by_program", "replays", "introducing", "stage_values"}
