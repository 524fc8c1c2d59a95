"""Tokenizers that come with models give the ids that the library gives for the same vocabulary."""

import json

import pytest
from tests.decoder.checkpoints import directory
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from firstdrift.decoder.tokenizing import RULES, embedded, tokenizer_of
from firstdrift.errors import CaptureError, FormatError

TEXTS = [
    "What is 2+2?", "it's 1234567 o'clock,  isn't IT'S?\n\n\tdef f(x): return x**2", "  two  spaces ", "",
    "日本語 é é ünï 😀",
    "<|im_start|>user\nHello<|im_end|>",
]  # fmt: skip
CORPUS = ["the quick brown fox it's 1234 don't  jump\n\n over the lazy dog's 2+2 = 4 ünï 日本語"] * 40


def trained():
    """A byte-level BPE of a small corpus, as GPT-2's is made."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|im_start|>", "<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def gguf_keys(made, **more):
    said = json.loads(made.to_str())["model"]
    tokens = sorted(said["vocab"], key=said["vocab"].get)
    merges = [" ".join(merge) for merge in said["merges"]]
    kinds = [3 if token.startswith("<|") else 1 for token in tokens]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": kinds, **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }  # fmt: skip


def read(said):
    return embedded(said, "model.gguf")


def test_a_byte_level_vocabulary_in_gguf_is_the_tokenizer_it_was_made_from():
    made = trained()
    found = read(gguf_keys(made, pre="gpt-2"))
    for text in TEXTS:
        assert found.encode(text).ids == made.encode(text).ids
        assert found.decode(found.encode(text).ids) == made.decode(made.encode(text).ids)


SPLITS = {
    "smollm": ["it", "'s", "1", "2", "3", "4", ",", "ĠIT", "'", "S"],
    "llama-bpe": ["it", "'s", "123", "4", ",", "ĠIT", "'S"],
    "qwen2": ["it", "'s", "1", "2", "3", "4", ",", "ĠIT", "'S"],
    "gpt-2": ["it", "'s", "1234", ",", "ĠIT", "'", "S"],
    "tekken": ["it", "'s", "1", "2", "3", "4", ",", "ĠIT", "'S"],
}


@pytest.mark.parametrize("rule", SPLITS)
def test_words_are_divided_by_the_rule_that_gguf_names(rule):
    found = read(gguf_keys(trained(), pre=rule))
    words = [word for word, _ in found.pre_tokenizer.pre_tokenize_str("it's1234, IT'S")]
    assert words == SPLITS[rule]
    assert rule in RULES


def test_a_text_begins_with_the_token_that_gguf_asks_for():
    made = trained()
    said = gguf_keys(made, pre="gpt-2", add_bos_token=True, bos_token_id=0)
    assert read(said).encode("dog").ids == [0, *made.encode("dog").ids]
    with pytest.raises(FormatError, match="texts begin with token 4000"):
        read(said | {"tokenizer.ggml.bos_token_id": 4000})


def sentence_piece():
    """A vocabulary with scores as SentencePiece's BPE has: the later a piece was learned, the lower its score."""
    pieces = [
        "▁",
        "t",
        "h",
        "e",
        "q",
        "u",
        "i",
        "c",
        "k",
        "th",
        "▁the",
        "he",
        "▁th",
        "qu",
        "ick",
        "ic",
        "▁qu",
        "▁quick",
    ]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    learned = ["th", "he", "▁th", "▁the", "qu", "ic", "ick", "▁qu", "▁quick"]
    scores = [0.0] * 259 + [-float(learned.index(piece)) if piece in learned else -100.0 for piece in pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
    }  # fmt: skip


def test_scores_join_the_best_neighbours_first_and_bytes_stand_for_the_rest():
    said = sentence_piece()
    found = read(said)
    tokens = said["tokenizer.ggml.tokens"]
    assert [tokens[number] for number in found.encode("the quick").ids] == ["<s>", "▁the", "▁quick"]
    assert [tokens[number] for number in found.encode("é").ids] == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("the quick é").ids) == "the quick é"
    assert "▁the" not in [tokens[n] for n in read(said | {"tokenizer.ggml.add_space_prefix": False}).encode("the").ids]


def test_an_apr_files_vocabulary_is_read_in_both_its_shapes():
    made = trained()
    keys = gguf_keys(made)
    tokens, merges = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.merges"]
    listed = {"tokenizer.vocabulary": tokens, "tokenizer.merges": merges, "special_tokens": {"eos_token": "<|im_end|>"}}
    named = listed | {"tokenizer.vocabulary": {token: number for number, token in enumerate(tokens)}}
    for said in (listed, named):
        assert read(said).encode("the dog's<|im_end|>").ids == made.encode("the dog's<|im_end|>").ids
    qwen = read(listed | {"architecture": "qwen2"})
    assert isinstance(qwen.normalizer, normalizers.NFC)


WRONG = {
    "rule": ({"tokenizer.ggml.pre": "chameleon"}, "the rule 'chameleon', and only gpt-2, default, smollm"),
    "kind": ({"tokenizer.ggml.model": "bert"}, "of kind 'bert', and only gpt2 and llama are known"),
    "merges": ({"tokenizer.ggml.merges": ["a b c"]}, "the merge 'a b c' is not of two pieces"),
    "merge of nothing": ({"tokenizer.ggml.merges": ["zz qq"]}, "a merge needs the token 'zz', which there is not"),
    "longer than any": (
        {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.merges": ["a b"]},
        "needs the token 'ab'",
    ),
    "rule of no text": ({"tokenizer.ggml.pre": ["gpt-2"]}, r"the rule \['gpt-2'\], and only gpt-2"),
    "types": ({"tokenizer.ggml.token_type": 7}, "tokenizer.ggml.token_type is no list of numbers"),
    "numbers": ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens is no list of texts"),
    "no merges": ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is no list of texts"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_vocabulary_that_cannot_be_read_is_refused(kind):
    changes, sentence = WRONG[kind]
    with pytest.raises(FormatError, match=sentence):
        read(gguf_keys(trained(), pre="gpt-2") | changes)
    with pytest.raises(FormatError, match="has no number for each of 277 tokens"):
        read(sentence_piece() | {"tokenizer.ggml.scores": [0.0]})
    with pytest.raises(FormatError, match="tokenizer.ggml.scores is no list of numbers"):
        read(sentence_piece() | {"tokenizer.ggml.scores": ["high"] * 277})
    with pytest.raises(FormatError, match="tokenizer.vocabulary is no list of numbers"):
        read({"tokenizer.vocabulary": {"a": 0, "b": "1"}, "tokenizer.merges": []})


class PanicError(BaseException):
    """As the library's Rust raises it: no Exception."""


def test_a_panic_of_the_library_is_a_sentence(monkeypatch, tmp_path):
    def panic(*arguments):
        raise PanicError("range end index 2 out of range")

    model = directory(tmp_path / "model")
    trained().save(str(model / "tokenizer.json"))
    monkeypatch.setattr(Library, "from_file", staticmethod(panic))
    monkeypatch.setattr("firstdrift.decoder.tokenizing.tokenizers_library", lambda: Library)
    with pytest.raises(FormatError, match="is no tokenizer that can be read .range end index 2"):
        tokenizer_of(model)


class Library:
    """Stands for the library."""

    from_file = staticmethod(Tokenizer.from_file)


Library.Tokenizer = Library


def test_a_model_without_a_tokenizer_and_a_damaged_one_are_refused(tmp_path):
    model = directory(tmp_path / "model")
    with pytest.raises(
        CaptureError, match="has no tokenizer, neither inside nor as tokenizer.json or vocab.json beside it.*--tokens"
    ):
        tokenizer_of(model)
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="tokenizer.json: is no tokenizer that can be read"):
        tokenizer_of(model)
    trained().save(str(model / "tokenizer.json"))
    assert tokenizer_of(model).encode("the").ids == tokenizer_of(model / "model.safetensors").encode("the").ids
