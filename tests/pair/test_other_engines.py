"""Traces of other engines need no map: what they computed is found by its numbers, and a mistake stays where it is."""

import pytest

pytest.importorskip("torch")

from tests.pair.recorded_engines import CANDIDATES, PAIRS, unpacked

import firstdrift as fd

NAMES = ["-".join(pair) for pair in PAIRS]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return {model: unpacked(model, tmp_path_factory.mktemp(model)) for model in CANDIDATES}


def counterparts(result):
    """Of every output and weight what it was compared with."""
    pairs = [one.pair for one in result.pairs if not one.site.port.startswith("in.")]
    return {pair.site: pair.candidate[0] for pair in pairs if pair.site.phase in ("fwd", "weight")}


@pytest.mark.parametrize(("model", "engine"), PAIRS, ids=NAMES)
def test_a_clean_run_of_another_engine_is_green_without_a_map(model, engine, recorded):
    result = fd.diff(recorded[model] / "reference", recorded[model] / engine)
    assert result.exit_code == 0, str(result)
    assert not any("ambiguous" in note for note in result.notes)


@pytest.mark.parametrize(("model", "engine"), PAIRS, ids=NAMES)
def test_a_mistake_is_found_where_it_is_and_moves_no_names(model, engine, recorded):
    folder = recorded[model]
    clean = counterparts(fd.diff(folder / "reference", folder / engine))
    result = fd.diff(folder / "reference-bug", folder / engine, explain=False)
    assert result.exit_code == 1
    found = counterparts(result)
    candidate = fd.open_trace(folder / engine)

    def same(one, other):
        return one.site == other.site or candidate.array(one).tobytes() == candidate.array(other).tobytes()

    wrong = [site for site, record in found.items() if site in clean and not same(record, clean[site])]
    assert len(wrong) <= 0.05 * len(clean), wrong
    assert sum(site in found for site in clean) >= 0.7 * len(clean)


def test_llama_cpp_keeps_q_and_k_interleaved_and_its_cache_padded(recorded):
    result = fd.diff(recorded["llama"] / "reference", recorded["llama"] / "cpp")
    turned = {one.site.name for one in result.pairs if one.site.phase == "weight" and one.pair.candidate_steps}
    assert turned == {f"model.layers.{n}.self_attn.{part}_proj" for n in (0, 1) for part in "qk"}


def test_a_folded_norm_is_explained_and_not_counted_as_covered(recorded):
    result = fd.diff(recorded["cnn"] / "reference", recorded["cnn"] / "opt")
    folded = [one for one in result.absorbed if "folded into the candidate's" in one.reason]
    assert {one.site.port for one in folded} >= {"weight", "bias", "running_mean", "running_var"}
    assert not {one.site for one in folded} & {one.site for one in result.pairs}


def test_a_norm_folded_wrongly_is_not_explained(recorded, tmp_path):
    source = fd.open_trace(recorded["cnn"] / "opt")
    with fd.Writer(tmp_path / "wrong") as writer:
        for record in source.records:
            array = source.array(record)
            if (
                record.site.phase == "weight"
                and "ConvBnFusion_W_layer1.conv1" in f"{record.site.name}.{record.site.port}"
            ):
                array = array * 1.001
            site = record.site
            writer.put(site.name, site.phase, array, port=site.port, call=site.call, op=record.op)
    result = fd.diff(recorded["cnn"] / "reference", tmp_path / "wrong", explain=False)
    assert result.exit_code == 2
    assert "layer1.conv1" in {one.site.name for one in result.reference_only}
