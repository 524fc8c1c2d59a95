"""The twin's npy dumps: the port's file names, one sample each, gradients of the sum, for the original's comparator."""

import numpy as np
import pytest
from click.testing import CliRunner
from tests.demo.laboratory import basics, run

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.demo.twin import main as twin

B = 3  # no power of two: what is divided by it and multiplied again is rounded, as in the original
ASKED = ("--batch", B, "--samples", 2, "--steps", 2)


@pytest.fixture(scope="module")
def dumps(laboratory, tmp_path_factory):
    """Both dumps, the twin's trace, and that trace exported."""
    port, weights = laboratory.port, laboratory.weights(0)
    root = tmp_path_factory.mktemp("dumps")
    assert run(port, *basics(weights), *ASKED, "--npy", root / "dump_c").returncode == 0
    asked = map(str, ["--weights", weights, *ASKED, "--npy", root / "dump_pt", "--out", root / "trace"])
    assert CliRunner().invoke(twin, list(asked)).exit_code == 0
    done = CliRunner().invoke(cli, ["export", str(root / "trace"), str(root / "exported"), "--format", "npy"])
    assert done.exit_code == 0, done.output
    return root


def files(directory):
    return {str(file.relative_to(directory)): file for file in directory.rglob("*.npy")}


def test_both_sides_dump_the_same_files(dumps):
    assert files(dumps / "dump_pt").keys() == files(dumps / "dump_c").keys()
    for name in ("probes.txt", "gradient_of.json"):
        assert (dumps / "dump_pt" / name).read_text().split() == (dumps / "dump_c" / name).read_text().split()


def test_every_file_is_plain_float32_of_one_sample(dumps):
    for name, file in files(dumps / "dump_pt").items():
        assert file.read_bytes()[:8] == b"\x93NUMPY\x01\x00", name
        array = np.load(file)
        assert (array.dtype, array.flags.c_contiguous) == (np.float32, True)
        assert array.shape == np.load(dumps / "dump_c" / name).shape
        if ".s0" in name:
            assert array.shape[0] == 1


def first_drift(dump_c, dump_pt, abs_floor=1e-4):
    """The original's rule, as it is specified: by tier, 1000 times the floor."""
    tiers = ("fwd", "lossgrad", "agrad", "grad_raw", "grad_scaled", "w_before", "w_after")
    rank = lambda file: next((i for i, tier in enumerate(tiers) if file.name.split(".")[1].startswith(tier)), 7)  # noqa: E731
    floor, tier = 1e-6, None
    for file in sorted(dump_c.glob("*.npy"), key=lambda file: (rank(file), file.name)):
        if rank(file) != tier:
            floor, tier = 1e-6, rank(file)
        ours, theirs = (np.load(path).astype(float) for path in (dump_pt / file.name, file))
        apart = np.abs(ours - theirs)
        relative = (apart / np.maximum(np.abs(ours), 1e-12)).max()
        if apart.max() > abs_floor and relative > 1000 * floor:
            return file.name
        floor = max(floor, relative) if relative < 1 else floor
    return None


@pytest.mark.parametrize("step", ["step000", "step001"])
def test_the_originals_comparator_finds_no_drift_in_the_two(dumps, step):
    assert first_drift(dumps / "dump_c" / step, dumps / "dump_pt" / step) is None


def test_gradients_are_multiplied_by_the_batch_but_for_those_the_optimizer_sees(dumps):
    trace, dump = fd.open_trace(dumps / "trace"), fd.open_trace(dumps / "dump_pt")
    batch = np.float32(B)
    for phase, name, factor in (("fwd", "conv1", 1), ("agrad", "conv1", batch), ("lossgrad", "loss", batch)):
        for sample in range(2):
            whole = trace.array(fd.Site(0, phase, name, "out"))
            np.testing.assert_array_equal(
                dump.array(fd.Site(0, phase, name, "out", 0, sample)), whole[sample : sample + 1] * factor
            )
    for phase, factor in (("grad", batch), ("grad_scaled", 1), ("weight", 1), ("weight_after", 1)):
        site = fd.Site(0, phase, "fc", "weight")
        np.testing.assert_array_equal(dump.array(site), trace.array(site) * factor)


@pytest.mark.parametrize("candidate", ["dump_c", "exported"])
def test_no_flags_are_needed_to_compare_them_with_a_program(dumps, candidate):
    result = fd.diff(dumps / "trace", dumps / candidate)
    assert (result.exit_code, str(result.verdict) in ("same", "noise", "flip")) == (0, True), result.sentence


@pytest.mark.parametrize(
    ("reference", "candidate"), [("dump_pt", "dump_c"), ("exported", "dump_c"), ("dump_c", "exported")]
)
def test_files_that_name_no_operations_are_aligned_and_left_open(dumps, reference, candidate):
    result = fd.diff(dumps / reference, dumps / candidate)
    assert (result.exit_code, result.verdict, result.reference_only) == (2, "inconclusive", ()), result.sentence


def test_an_export_names_what_the_optimizer_sees_as_c_does(dumps):
    exported = files(dumps / "exported")
    parameters = {name for name in files(dumps / "dump_c") if ".s0" not in name}
    assert "step000/conv1.grad_scaled.weight.npy" in parameters
    assert parameters <= exported.keys()


def test_a_dump_that_is_there_stays_unless_forced(weights, dumps):
    asked = [str(one) for one in ("--weights", weights, "--batch", 1, "--npy", dumps / "dump_c")]
    refused = CliRunner().invoke(twin, asked)
    assert refused.exit_code == 2
    assert "dump_c: is not an empty directory" in refused.output
