"""Data: texts and token shards, what is held out, and the order in which the rest comes."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from tests.pretrain.worlds import settings, write_tokenizer

from firstdrift.errors import FormatError, NotFoundError, SelectionError
from firstdrift.pretrain.data.corpora import find_corpus, open_shard, read_tokens
from firstdrift.pretrain.data.training_tokenizer import open_tokenizer
from firstdrift.pretrain.data.windows import batch_at, cut

TOKENS = np.arange(1000) % 250
NPY = b"\x93NUMPY\x01\x00" + (54).to_bytes(2, "little") + b"{'descr': '<u2', 'fortran_order': False, 'shape': (0,)}"


@dataclass
class Bytes:
    """A tokenizer whose tokens are bytes."""

    end: int | None = 255

    def encode_batch(self, texts):
        return [list(text.encode()) for text in texts]


def write_bin(path, dtype, tokens=TOKENS, header=None):
    with open(path, "wb") as file:
        if header is not None:
            words = np.zeros(256, "<i4")
            words[: len(header)] = header
            file.write(words.tobytes())
        file.write(tokens.astype(dtype).tobytes())
    return path


# Shards.


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8", "i4", "i8", "u1"])
def test_npy_shards_of_any_whole_numbers_are_read(dtype, tmp_path):
    np.save(tmp_path / "a.npy", TOKENS.astype(dtype))
    assert open_shard(tmp_path / "a.npy", 250).tolist() == TOKENS.tolist()


@pytest.mark.parametrize(
    ("dtype", "vocabulary", "header"),
    [
        ("<u2", 250, None),
        ("<u4", 250, None),  # every second half is zero
        ("<u4", 100_000, None),
        ("<u2", 250, (20240520, 1, 1000)),
        ("<u4", 100_000, (20240801, 7, 1000)),
    ],
)
def test_raw_shards_are_read_in_the_width_they_have(dtype, vocabulary, header, tmp_path):
    found = open_shard(write_bin(tmp_path / "a.bin", dtype, header=header), vocabulary)
    assert found.tolist() == TOKENS.tolist()


def test_raw_shards_of_wide_tokens_that_need_no_more_than_16_bits_are_not_taken_for_wide_ones(tmp_path):
    tokens = np.array([0, 60_000, 0, 1, 7, 0])  # zeros at even places only
    assert open_shard(write_bin(tmp_path / "a.bin", "<u2", tokens), 65_536).tolist() == tokens.tolist()


@pytest.mark.parametrize(
    ("name", "make", "complaint"),
    [
        ("a.bin", lambda p: p.write_bytes(b"\1\2\3"), "3 bytes are no whole number of 2-byte tokens"),
        ("a.bin", lambda p: write_bin(p, "<u2", header=(20240520, 1, 999)), "claims 999 tokens and 1000 follow"),
        ("a.npy", lambda p: p.write_bytes(b"no npy at all, and long enough"), "not a readable npy header|npy version"),
        ("a.npy", lambda p: np.save(p, TOKENS.reshape(10, 100)), r"int64\[10, 100\]"),
        ("a.npy", lambda p: np.save(p, TOKENS.astype("f4")), "float32"),
        ("a.npy", lambda p: np.save(p, np.array([1, {}], object), allow_pickle=True), "pickled Python objects"),
        ("a.npy", lambda p: p.write_bytes(NPY.replace(b"}", b"(")), "not a readable npy header"),
    ],
)
def test_a_broken_shard_is_refused(name, make, complaint, tmp_path):
    make(tmp_path / name)
    with pytest.raises(FormatError, match=complaint) as error:
        open_shard(tmp_path / name, 250)
    assert name in str(error.value)


@pytest.mark.parametrize("wrong", [249, -1])
def test_a_token_beyond_the_vocabulary_is_named_with_its_place(wrong, tmp_path):
    tokens = np.full(100, 5)
    tokens[77] = wrong
    np.save(tmp_path / "a.npy", tokens)
    with pytest.raises(FormatError, match=rf"token 77 is {wrong}, and the model's vocabulary ends at 248 \(OOB\)"):
        open_shard(tmp_path / "a.npy", 249)


def test_an_empty_npy_shard_has_no_tokens(tmp_path):
    np.save(tmp_path / "a.npy", np.array([], np.uint16))
    assert open_shard(tmp_path / "a.npy", 9).tolist() == []


def test_a_merge_of_tokens_that_there_are_not_is_refused_before_the_library_panics(tmp_path, capfd):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(FormatError, match="merges.txt: a merge needs the token 'ab', which there is not"):
        open_tokenizer(tmp_path)
    assert capfd.readouterr() == ("", "")


# Texts and directories.


def test_a_text_is_tokens_with_an_end_after_each_document(tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.md").write_text("\ufeffc", "utf-8")
    (tmp_path / "c.txt").write_text("  \n")
    (tmp_path / "d.jsonl").write_text('{"text": "d"}\n\n{"text": "e", "id": 1}\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f.py").write_text("f")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    corpus = find_corpus(tmp_path)
    assert corpus.skipped == 1
    (tokens,) = read_tokens(corpus, 256, Bytes())
    assert bytes(tokens.tolist()).split(b"\xff") == [b"ab", b"c", b"d", b"e", b"f", b""]
    (without,) = read_tokens(corpus, 256, Bytes(end=None))
    assert bytes(without.tolist()) == b"abcdef"


def test_a_directory_of_shards_is_a_segment_each_in_order(tmp_path):
    np.save(tmp_path / "shard-1.npy", TOKENS[:10])
    write_bin(tmp_path / "shard-0.bin", "<u2", TOKENS[10:30])
    segments = read_tokens(find_corpus(tmp_path), 250, None)
    assert [len(one) for one in segments] == [20, 10]


@pytest.mark.parametrize(
    ("make", "kind", "complaint"),
    [
        (lambda d: None, FormatError, "holds nothing to train on"),
        (
            lambda d: ((d / "a.txt").write_text("a"), np.save(d / "b.npy", TOKENS)),
            FormatError,
            "token shards .b.npy. and",
        ),
        (lambda d: (d / "a.txt").write_bytes(b"ab\xff"), FormatError, "byte 2 is 0xff, which is no UTF-8"),
        (lambda d: (d / "a.jsonl").write_text('{"text": "a"}\n{"body": 1}\n'), FormatError, "line 2: has no text"),
        (lambda d: (d / "a.jsonl").write_text("nothing\n"), FormatError, "line 1: it is not a JSON object"),
    ],
)
def test_bad_data_is_refused(make, kind, complaint, tmp_path):
    make(tmp_path)
    with pytest.raises(kind, match=complaint):
        read_tokens(find_corpus(tmp_path), 256, Bytes())


def test_data_that_is_not_there_and_text_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="--data"):
        find_corpus(tmp_path / "missing")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(SelectionError, match="--tokenizer"):
        read_tokens(find_corpus(tmp_path), 256, None)


# Windows.


def windows_of(count, **given):
    chosen = settings(**{"seq_length": 8, **given})
    return cut((np.arange(count * chosen.seq_length),), chosen, "data"), chosen


@pytest.mark.parametrize("count", [2, 3, 10, 99, 1000, 5000])
def test_no_token_is_both_trained_on_and_held_out(count):
    windows, _ = windows_of(count)
    trained, held = windows.take(windows.training), windows.take(windows.held_out)
    assert not set(trained.ravel().tolist()) & set(held.ravel().tolist())
    assert len(trained) + len(held) == count
    assert len(held) >= 1
    assert len(trained) >= 1


def test_sixteen_batches_are_held_out_but_no_more_than_a_tenth():
    assert len(windows_of(5000)[0].held_out) == 16 * 4
    assert len(windows_of(100)[0].held_out) == 10
    assert len(windows_of(5)[0].held_out) == 1


def test_what_is_held_out_does_not_depend_on_the_seed_and_lies_everywhere():
    first, second = windows_of(1000, seed=1)[0], windows_of(1000, seed=2)[0]
    assert first.held_out.tolist() == second.held_out.tolist()
    assert np.diff(first.held_out).max() <= 1000 // len(first.held_out) + 1


def test_one_pass_sees_every_window_once_and_the_next_in_another_order():
    windows, chosen = windows_of(40)
    count = len(windows.training)
    passes = [batch_at(windows, chosen.seed, number * count, count)[:, 0].tolist() for number in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(windows.take(windows.training)[:, 0].tolist())
    assert passes[0] != passes[1]
    other = batch_at(windows, chosen.seed + 1, 0, count)[:, 0].tolist()
    assert other != passes[0]


def test_a_position_is_all_there_is_to_remember():
    windows, _ = windows_of(40)
    whole = batch_at(windows, 3, 0, 100)
    assert (batch_at(windows, 3, 57, 4) == whole[57:61]).all()


def test_windows_do_not_cross_segments():
    chosen = settings(seq_length=8)
    windows = cut((np.arange(20), np.arange(100, 117)), chosen, "data")
    every = windows.take(np.arange(4))
    assert every[:, 0].tolist() == [0, 8, 100, 108]
    assert (np.diff(every) == 1).all()


@pytest.mark.parametrize("tokens", [0, 1, 15])
def test_empty_and_tiny_data_are_refused_with_the_numbers(tokens):
    with pytest.raises(FormatError, match=rf"data: {tokens} tokens are \d windows of --seq-length 8"):
        cut((np.arange(tokens),), settings(seq_length=8), "data")


def test_the_fingerprint_is_that_of_the_tokens_and_not_of_their_dtype():
    chosen = settings(seq_length=8)
    prints = [cut((TOKENS.astype(dtype),), chosen, "data").fingerprint for dtype in ("u2", "i8")]
    assert prints[0] == prints[1]
    changed = TOKENS.copy()
    changed[500] += 1
    assert cut((changed,), chosen, "data").fingerprint != prints[0]


# Tokenizers.


def test_a_vocabulary_of_bytes_needs_no_merges(tmp_path):
    tokenizer = open_tokenizer(write_tokenizer(tmp_path / "t"))
    assert tokenizer.encode_batch(["a é\n"]) == [list("a é\n".encode())]
    assert tokenizer.end is None
    assert list(tokenizer.files) == ["vocab.json"]


def test_a_tokenizer_json_is_read_with_its_end(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["to be or not to be, that is the question"] * 20, 300, special_tokens=["<|endoftext|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    found = open_tokenizer(tmp_path)
    assert found.end == made.token_to_id("<|endoftext|>")
    assert found.encode_batch(["to be"]) == [made.encode("to be").ids]
    assert found.entries == made.get_vocab_size()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "t"}}))
    assert open_tokenizer(tmp_path).end == made.token_to_id("t")
    made.save_model(str(tmp_path))  # vocab.json and merges.txt say the same
    assert open_tokenizer(tmp_path / "vocab.json").encode_batch(["to be"]) == [made.encode("to be").ids]


@pytest.mark.parametrize(("name", "text"), [("tokenizer.json", "{}"), ("vocab.json", '{"a": "b"}'), ("x.txt", "")])
def test_what_is_no_tokenizer_is_refused(name, text, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / name).write_text(text)
    with pytest.raises((FormatError, NotFoundError), match="tokenizer|vocabulary"):
        open_tokenizer(tmp_path)
