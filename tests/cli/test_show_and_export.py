"""`firstdrift show` and `firstdrift export`, as people and scripts see them."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift.cli.main import cli


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fd.Writer("run", producer="test 1", model="tiny", batch=2) as writer:
        writer.put("input", "input", np.arange(4, dtype=np.float32).reshape(2, 2), port="x")
        writer.put("fc", "weight", np.eye(2, dtype=np.float32))
        writer.put("fc", "fwd", np.array([[0.5, -1], [np.nan, np.inf]], np.float32), op="Linear", producers=["input"])
        writer.put("act", "fwd", np.ones((2, 2), ml_dtypes.bfloat16), sample=1)
        writer.put_absent("fc", "grad", "no gradient")
        writer.put_stats("act", "agrad", {"mean": 0.25, "max": float("inf")}, dtype="f16", shape=(2, 2))
    return Path("run")


def test_the_listing_is_in_causal_order_and_says_what_each_site_is(trace):
    assert run("show", trace).output == (
        "run: trace, 6 sites, 56 B, complete\n"
        "  producer test 1, model tiny, batch 2\n"
        " step phase        site              tensor\n"
        "    0 input        input:x           f32[2, 2]\n"
        "    0 weight       fc:weight         f32[2, 2]\n"
        "    0 fwd          fc:out            f32[2, 2]\n"
        "    0 fwd          act:out sample 1  bf16[2, 2]\n"
        "    0 agrad        act:out           f16[2, 2] statistics only\n"
        "    0 grad         fc:weight         absent: no gradient\n"
    )


def test_one_tensor_is_shown_with_what_is_known_of_it(trace):
    assert run("show", trace, "fc", "--phase", "fwd").output == (
        "fwd fc:out step 0: f32[2, 2]\n"
        "  op: Linear\n"
        "  from: [{'name': 'input'}]\n"
        "  count 4  nan_count 1  inf_count 1  min -1  max 0.5  mean -0.25  std 0.75  l2 1.11803\n"
        "  [[ 0.5 -1. ]\n"
        "   [ nan  inf]]\n"
    )


def test_a_name_may_be_a_glob_and_sites_without_values_are_shown_too(trace):
    output = run("show", trace, "*c*").output
    assert "grad fc:weight step 0: absent: no gradient" in output
    assert "agrad act:out step 0: f16[2, 2] statistics only\n  recorded statistics: mean 0.25  max inf" in output
    assert "fwd act:out step 0 sample 1: bf16[2, 2]" in output


def test_a_name_that_is_not_there_gets_a_hint(trace):
    assert run("show", trace, "FC2", code=2).output == (
        "firstdrift: run: nothing is named 'FC2'; list it without a name to see them\n"
    )
    assert "near it: fc" in run("show", trace, "C", code=2).output


def test_json_is_strict_and_complete(trace):
    said = json.loads(run("show", trace, "--json").output, parse_constant=lambda text: pytest.fail(text))
    assert (said["schema"], said["complete"], said["header"]["model"]) == ("firstdrift-show-v1", True, "tiny")
    assert [site["name"] for site in said["sites"]] == ["input", "fc", "fc", "act", "act", "fc"]
    one = json.loads(run("show", trace, "fc", "--phase", "fwd", "--json").output)["sites"][0]
    assert one["values"] == [0.5, -1.0, "nan", "inf"]
    assert (one["measured"]["nan_count"], one["measured"]["max"]) == (1, 0.5)


def test_an_unfinished_trace_is_shown_and_the_exit_code_says_so(trace):
    text = (trace / "index.jsonl").read_text()
    (trace / "index.jsonl").write_text(text.replace('{"end":6}\n', ""))
    output = run("show", trace, code=2).output
    assert "6 sites, 56 B, NOT COMPLETE\n" in output
    assert (
        "problem: index.jsonl has no end line: the writer was stopped before it closed the trace; sites there: 6"
        in output
    )


def test_verify_reads_the_bytes(trace):
    with fd.Writer("checked", checksum=True) as writer:
        writer.put("x", "fwd", np.ones(3))
    data = bytearray(Path("checked/data-00000.bin").read_bytes())
    run("show", "checked", "--verify")
    Path("checked/data-00000.bin").write_bytes(bytes([data[0] ^ 1]) + bytes(data[1:]))
    run("show", "checked")
    assert "its bytes have crc32" in run("show", "checked", "--verify", code=2).output


@pytest.mark.parametrize(
    ("target", "options"), [("out.npz", []), ("out.safetensors", []), ("out", ["--format", "trace"])]
)
def test_exporting_keeps_sites_and_bits(trace, target, options):
    assert run("export", trace, target, *options).output.startswith(f"{target}: ")
    before, after = fd.open_trace(trace), fd.open_trace(target)
    assert [r.site for r in after] == [r.site for r in before]
    assert [r.dtype for r in after] == [r.dtype for r in before]
    assert [r.producers for r in after] == [r.producers for r in before]
    assert [r.stats for r in after] == [r.stats for r in before]
    assert [r.absent for r in after] == [r.absent for r in before]
    for record in before:
        if record.at is not None:
            assert after.array(record.site).tobytes() == before.array(record).tobytes()
    assert after.header["model"] == "tiny"


def test_exporting_to_npy_says_what_it_cannot_carry(trace):
    assert run("export", trace, "dump", "--format", "npy").output == (
        "dump: npy, 6 sites, 56 B\n"
        "  1 tensors were widened to float32, exactly: npy has no bfloat16 or float8\n"
        "  2 sites without values were left out: npy can only hold tensors\n"
    )
    assert Path("dump/probes.txt").read_text() == "input\nfc\nact\n"
    assert fd.open_trace("dump").complete


def test_a_part_can_be_exported(trace):
    run("export", trace, "part.npz", "--only", "fc", "--phase", "w*")
    assert [str(r.site) for r in fd.open_trace("part.npz")] == ["weight fc:weight step 0"]


def test_what_a_format_cannot_hold_is_refused_with_the_next_step(trace):
    assert "APRT holds only float32 forward outputs" in run("export", trace, "x", "--format", "aprt", code=2).output
    assert not Path("x").exists()


def test_an_existing_target_is_kept_unless_forced(trace):
    Path("out.npz").write_text("mine")
    assert "exists; choose another path, or overwrite (--force)" in run("export", trace, "out.npz", code=2).output
    assert Path("out.npz").read_text() == "mine"
    run("export", trace, "out.npz", "--force")
    assert len(fd.open_trace("out.npz")) == 6
    assert (
        "is, or holds, the trace itself" in run("export", trace, "run", "--format", "trace", "--force", code=2).output
    )


def test_a_format_that_cannot_be_guessed_is_asked_for(trace):
    assert "add --format trace, aprt, npy, npz or safetensors" in run("export", trace, "out", code=2).output
    assert "there is no format 'zarr'; known are trace, aprt, npy, npz, safetensors" in (
        run("export", trace, "out", "--format", "zarr", code=2).output
    )


def test_a_pattern_that_matches_nothing_is_an_error(trace):
    assert "nothing matches --only conv*" in run("show", trace, "--only", "conv*", code=2).output


def test_export_speaks_json(trace):
    assert json.loads(run("export", trace, "out.npz", "--json").output) == {
        "schema": "firstdrift-export-v1", "path": "out.npz", "format": "npz", "sites": 6, "bytes": 56, "notes": [],
    }  # fmt: skip


def test_an_error_is_one_sentence_and_debug_shows_the_traceback(trace):
    quiet = run("show", "nowhere", code=2)
    assert quiet.output == "firstdrift: nowhere: cannot open it (No such file or directory); check the path\n"
    assert "Traceback" in run("show", "nowhere", "--debug", code=2).output


def test_an_internal_error_has_its_own_exit_code(trace, monkeypatch):
    monkeypatch.setattr("firstdrift.cli.commands.show.listing", lambda trace, records: 1 / 0)
    result = run("show", trace, code=3)
    assert result.output == "firstdrift: internal error, ZeroDivisionError: division by zero; --debug shows where\n"


@pytest.mark.parametrize("arguments", [["show"], ["shwo"], ["show", "run", "--limit", "0"], ["--nonsense"]])
def test_wrong_usage_exits_with_2(trace, arguments):
    assert "Usage:" in run(*arguments, code=2).output


def test_the_installed_command_works_and_survives_a_closed_pipe(trace):
    command = str(Path(sys.executable).with_name("firstdrift"))
    piped = subprocess.run(f"{command} show run | head -1", shell=True, capture_output=True, text=True, check=True)
    assert piped.stdout == "run: trace, 6 sites, 56 B, complete\n"
    assert piped.stderr == ""
    assert subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.startswith(
        "firstdrift"
    )


def test_an_export_never_removes_its_own_source(trace):
    for step in range(2):
        Path(f"dump/step{step:03d}").mkdir(parents=True)
        np.save(f"dump/step{step:03d}/fc.fwd.s000.npy", np.ones(3, np.float32))
    run("export", "dump/step000", "dump", "--format", "npy", "--force", code=2)
    assert len(fd.open_trace("dump")) == 2


def test_doubts_travel_with_an_export(trace):
    Path("dump").mkdir()
    np.save("dump/fc1.fwd.s000.npy", np.ones(3, np.float32))
    for target in ("copy", "copy.npz"):
        assert "inferred" in run("export", "dump", target, "--format", "trace" if target == "copy" else "npz").output
        assert any("inferred" in note for note in fd.open_trace(target).notes)
    text = (trace / "index.jsonl").read_text()
    (trace / "index.jsonl").write_text(text.replace('{"end":6}\n', ""))
    run("export", trace, "unfinished", "--format", "trace", code=2)
    assert not fd.open_trace("unfinished").complete


def test_damage_is_not_certified_by_an_export(trace):
    with fd.Writer("checked", checksum=True) as writer:
        writer.put("x", "fwd", np.ones(3))
    data = bytearray(Path("checked/data-00000.bin").read_bytes())
    Path("checked/data-00000.bin").write_bytes(bytes([data[0] ^ 1]) + bytes(data[1:]))
    run("export", "checked", "copied", "--format", "trace", code=2)
    assert not fd.open_trace("copied").complete


def test_hostile_text_does_not_reach_the_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fd.Writer("run", model="\x1b[31mred\nline") as writer:
        writer.put("a\x1b[2J", "fwd", np.ones(2), note="\x1b]0;title\ud800")
        writer.put_absent("b", "grad", "\x1b[1m")
    listed, one = run("show", "run").output, run("show", "run", "*").output
    assert "\x1b" not in listed + one
    assert "model \\x1b[31mred\\nline" in listed
    assert "note: \\x1b]0;title\\ud800" in one
