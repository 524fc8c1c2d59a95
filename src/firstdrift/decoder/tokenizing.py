"""The tokenizer that comes with a model: tokenizer.json, vocab.json with its merges, or what a checkpoint embeds.

Those inside are byte-level BPE, or SentencePiece's BPE with scores. A vocabulary and its merges do not say where words
begin. GGUF names that rule (`tokenizer.ggml.pre`); a rule that is not known here is refused, because another one would
give other tokens without a sign of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.strict_json import Json
from ..errors import CaptureError, FirstdriftError, FormatError
from ..weights.json_file import read_json_object
from ..weights.open_checkpoint import open_checkpoint

_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3 = _CASELESS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END
QWEN2 = _CASELESS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END
)
# By the name of the rule: its expression (None: GPT-2's own), whether digits stand alone before it, whether a word
# that is in the vocabulary is taken whole.
RULES: dict[str, tuple[str | None, bool, bool]] = {
    "gpt-2": (None, False, False), "default": (None, False, False), "smollm": (None, True, False),
    "llama-bpe": (LLAMA3, False, True), "llama3": (LLAMA3, False, True), "llama-v3": (LLAMA3, False, True),
    "qwen2": (QWEN2, False, False), "tekken": (TEKKEN, False, True),
}  # fmt: skip
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types of GGUF
SPACE = "▁"


def embedded(said: Mapping[str, Json], place: str) -> Any | None:
    """The tokenizer in a checkpoint's metadata, or None where there is none."""
    if "tokenizer.ggml.tokens" in said:
        return _from_gguf(said, place, tokenizers_library())
    if "tokenizer.vocabulary" in said and "tokenizer.merges" in said:
        return _from_apr(said, place, tokenizers_library())
    return None


def tokenizers_library() -> Any:
    """The `tokenizers` library, or a sentence that asks for it."""
    try:
        import tokenizers
    except ImportError:
        raise CaptureError("a tokenizer needs the tokenizers library; pip install 'firstdrift[decoder]'") from None
    return tokenizers


@contextmanager
def refusing(sentence: str) -> Iterator[None]:
    """Turn whatever the library raises into a sentence: it has no class of its own, and its panics are no Exception."""
    try:
        yield
    except (FirstdriftError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise FormatError(f"{sentence} ({error}); fetch it again") from None


def _from_gguf(said: Mapping[str, Json], place: str, library: Any) -> Any:
    tokens = _texts(said["tokenizer.ggml.tokens"], "tokenizer.ggml.tokens", place)
    kinds = _numbers(said.get("tokenizer.ggml.token_type") or [], "tokenizer.ggml.token_type", place)
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (CONTROL, USER_DEFINED)]
    model = said.get("tokenizer.ggml.model")
    if model == "gpt2":
        merges = _texts(said.get("tokenizer.ggml.merges"), "tokenizer.ggml.merges", place)
        made = _byte_level(tokens, merges, said.get("tokenizer.ggml.pre", "default"), place, library)
    elif model == "llama":
        made = _sentence_piece(tokens, said, place, library)
    else:
        raise FormatError(
            f"{place}: its tokenizer is of kind {model!r}, and only gpt2 and llama are known; use --tokens"
        )
    with refusing(f"{place}: its vocabulary is no BPE"):
        made.add_special_tokens(special)
    if said.get("tokenizer.ggml.add_bos_token", model == "llama"):
        _begin_with(made, tokens, said.get("tokenizer.ggml.bos_token_id"), place, library)
    return made


def _from_apr(said: Mapping[str, Json], place: str, library: Any) -> Any:
    """A vocabulary in order or by name; the rule is that of the family, which is all that an APR file says."""
    vocabulary = said["tokenizer.vocabulary"]
    if isinstance(vocabulary, dict):
        _numbers([*vocabulary.values()], "tokenizer.vocabulary", place)
        vocabulary = sorted(vocabulary, key=lambda token: vocabulary[token])
    tokens = _texts(vocabulary, "tokenizer.vocabulary", place)
    merges = _texts(said["tokenizer.merges"], "tokenizer.merges", place)
    family = str(said.get("architecture") or said.get("hf_architecture") or "").lower()
    rule = said.get("tokenizer.ggml.pre", "qwen2" if family.startswith("qwen") else "default")
    made = _byte_level(tokens, merges, rule, place, library)
    named = said.get("special_tokens")
    known = set(tokens)
    special = [*named.values()] if isinstance(named, dict) else []
    with refusing(f"{place}: its vocabulary is no BPE"):
        made.add_special_tokens([token for token in special if isinstance(token, str) and token in known])
    return made


def _byte_level(tokens: Sequence[str], merges: Sequence[str], rule: Json, place: str, library: Any) -> Any:
    if not isinstance(rule, str) or rule not in RULES:
        raise FormatError(
            f"{place}: words are divided by the rule {rule!r}, and only {', '.join(RULES)} are known; use --tokens"
        )
    expression, digits, whole_words = RULES[rule]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        wrong = next(merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2)
        raise FormatError(f"{place}: the merge {wrong!r} is not of two pieces; fetch it again")
    made = library.Tokenizer(_bpe(library, tokens, pairs, place, ignore_merges=whole_words))
    before = library.pre_tokenizers
    parts = [before.Digits(individual_digits=True)] if digits else []
    if expression is not None:
        parts.append(before.Split(library.Regex(expression), behavior="isolated", invert=False))
    parts.append(before.ByteLevel(add_prefix_space=False, use_regex=expression is None))
    made.pre_tokenizer = before.Sequence(parts)
    made.decoder = library.decoders.ByteLevel()
    if rule == "qwen2":
        made.normalizer = library.normalizers.NFC()
    return made


def _sentence_piece(tokens: Sequence[str], said: Mapping[str, Json], place: str, library: Any) -> Any:
    """SentencePiece joins the neighbours whose union has the best score: merges in the order of scores do the same."""
    scores = _numbers(said.get("tokenizer.ggml.scores") or [], "tokenizer.ggml.scores", place)
    if len(scores) != len(tokens):
        raise FormatError(
            f"{place}: tokenizer.ggml.scores has no number for each of {len(tokens)} tokens; fetch it again"
        )
    number = {token: index for index, token in enumerate(tokens)}
    lengths = {len(token) for token in number}  # a token as long as a book has as many places to cut it
    found = [
        (-scores[index], index, len(left), (left, right))
        for token, index in number.items()
        for cut in lengths
        if 0 < cut < len(token) and (left := token[:cut]) in number and (right := token[cut:]) in number
    ]
    merges = [pair for *_, pair in sorted(found)]
    kinds: list[Json] = said.get("tokenizer.ggml.token_type") or []
    unknown = next((token for token, kind in zip(tokens, kinds, strict=False) if kind == UNKNOWN), None)
    made = library.Tokenizer(_bpe(library, tokens, merges, place, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    rules = library.normalizers
    prefix = [rules.Prepend(SPACE)] if said.get("tokenizer.ggml.add_space_prefix", True) else []
    made.normalizer = rules.Sequence([*prefix, rules.Replace(" ", SPACE)])
    ways = library.decoders
    strip = [ways.Strip(" ", 1, 0)] if prefix else []
    made.decoder = ways.Sequence([ways.Replace(SPACE, " "), ways.ByteFallback(), ways.Fuse(), *strip])
    return made


def _bpe(library: Any, tokens: Sequence[str], merges: Sequence[Any], place: str, **options: Any) -> Any:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    check_merges(merges, vocabulary, place)
    with refusing(f"{place}: its vocabulary is no BPE"):
        return library.models.BPE(vocab=vocabulary, merges=list(merges), **options)


def check_merges(merges: Sequence[tuple[str, ...]], vocabulary: Mapping[str, Json], place: object) -> None:
    """Refuse merges of tokens that there are not: the library panics at some of them, and prints pages."""
    for merge in merges:
        lacking = next((token for token in (*merge, "".join(merge)) if token not in vocabulary), None)
        if lacking is not None:
            raise FormatError(f"{place}: a merge needs the token {lacking!r}, which there is not; fetch it again")


def _begin_with(made: Any, tokens: Sequence[str], number: Json, place: str, library: Any) -> None:
    if type(number) is not int or not 0 <= number < len(tokens):
        raise FormatError(f"{place}: texts begin with token {number!r}, and there are {len(tokens)}; fetch it again")
    first = tokens[number]
    with refusing(f"{place}: texts cannot begin with {first!r}"):
        made.post_processor = library.processors.TemplateProcessing(
            single=f"{first}:0 $A:0", special_tokens=[(first, number)]
        )


def _numbers(found: Json, key: str, place: str) -> list[Json]:
    if not isinstance(found, list) or any(type(item) not in (int, float) for item in found):
        raise FormatError(f"{place}: {key} is no list of numbers; fetch it again")
    return found


def _texts(found: Json, key: str, place: str) -> list[str]:
    if not isinstance(found, list) or any(type(item) is not str for item in found):
        raise FormatError(f"{place}: {key} is no list of texts; fetch it again")
    return found


TOKENIZER, VOCAB, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
LARGEST = 256 << 20  # bytes


def tokenizer_of(path: str | PathLike[str]) -> Any:
    """The tokenizer of a model, of the `tokenizers` library: the directory's, what a file embeds, or what lies beside
    it. A model that has none is refused, because token ids cannot be guessed."""
    path = Path(path)
    file = tokenizer_file(path if path.is_dir() else path.parent)
    if path.is_dir() and file is not None:
        return library_of(file)
    with open_checkpoint(path) as checkpoint:
        inside = embedded(checkpoint.metadata, str(checkpoint.path))
    if inside is not None:
        return inside
    if file is not None:
        return library_of(file)
    raise CaptureError(
        f"{path}: has no tokenizer, neither inside nor as {TOKENIZER} or {VOCAB} beside it, so that --prompt cannot be "
        "read; give --tokens"
    )


def tokenizer_file(directory: Path) -> Path | None:
    """The file that says what a directory's tokenizer is."""
    return next((file for name in (TOKENIZER, VOCAB) if (file := directory / name).is_file()), None)


def library_of(file: Path) -> Any:
    """The tokenizer of a tokenizer.json, or of a vocab.json."""
    if file.name == VOCAB:
        return _from_vocabulary(file)
    library = tokenizers_library()
    with refusing(f"{file}: is no tokenizer that can be read"):
        return library.Tokenizer.from_file(str(file))


def _from_vocabulary(file: Path) -> Any:
    """Byte-level BPE, as GPT-2 has it; without merges every byte is a token of its own."""
    tokenizers = tokenizers_library()
    vocabulary = read_json_object(file, most=LARGEST)
    merges = file.parent / MERGES
    with refusing(f"{file}: is no vocabulary with its merges"):
        lines = merges.read_text("utf-8").split("\n") if merges.is_file() else []
        pairs = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
        check_merges(pairs, vocabulary, merges)
        library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library
