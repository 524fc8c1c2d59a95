"""What model a checkpoint is of: exactly ten numbers, read from its metadata or a preset, none assumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path

from ...core.regular import read_regular
from ...core.strict_json import Json
from ...errors import FirstdriftError, FormatError, StorageError, WeightsError
from ..checkpoint import Checkpoint
from ..formats.hf_directory import CONFIG
from ..formats.hf_directory import FORMAT as HF
from ..formats.model_metadata import FIELDS
from ..json_file import read_json_object
from ..open_checkpoint import open_checkpoint
from .failures import ARCHITECTURE, ENCODER, MAGIC, OPEN
from .families import contradiction, family_of_metadata, family_of_names, hybrid_of, is_encoder

HYBRID = "FALSIFY-TAH-001"
GGUF_TIED_BY = "output.weight"
OUTPUT_BIAS = "model.layers.0.self_attn.o_proj.bias"
LARGEST = 2**63  # above every number that a model has; Python's own whole numbers have no end


@dataclass(frozen=True, slots=True)
class Fields:
    """The ten fields that say what a decoder is."""

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    intermediate_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool


@dataclass(frozen=True, slots=True)
class Architecture(Fields):
    """The ten fields of a checkpoint, its architecture's name, and its family if known.

    `derived` lists fields that no key gives: `tie_word_embeddings` of a GGUF file.
    """

    name: str | None = None
    family: str | None = None
    derived: tuple[str, ...] = ()

    @property
    def encoder(self) -> bool:
        """Whether the name is an encoder's."""
        return is_encoder(self.name)

    def to_json(self) -> dict[str, Json]:
        """The ten fields."""
        return {field.name: asdict(self)[field.name] for field in fields(Fields)}


_FIELD = {field.config.replace("key_value", "kv"): field for field in FIELDS}  # what each format calls the ten
NAME_KEYS = {
    "config": ("architectures", "model_type"),
    "apr": ("hf_architecture", "hf_model_type", "architecture", "model_type"),
    "gguf": ("general.architecture",),
}


def read_architecture(path: str | PathLike[str]) -> Architecture:
    """Read the ten fields of an APR or GGUF file, a Hugging Face directory, or a config.json. There are no defaults.

    Raises if fields are missing or mistyped (FALSIFY-APR-PRETRAIN-INIT-005), if names of two families contradict each
    other (FALSIFY-INIT-ARCH-MATCH-001), or if a decoder bears an encoder's name (FALSIFY-APR-PRETRAIN-ARCH-007). GGUF
    has no key for tied embeddings: they are tied if it has no output layer, and `derived` says so.
    """
    path = Path(path)
    if _is_config(path) or (path.is_dir() and not weights_in(path)):
        file = path / CONFIG if path.is_dir() else path
        with _identified(file):
            config = read_json_object(file)
        return _checked("config", config, str(file), ())
    with open_described(path) as checkpoint:
        return architecture_of(checkpoint)


def open_described(path: Path) -> Checkpoint:
    """Open a checkpoint; what cannot be read, is none, or is broken behind its magic carries the id of that."""
    with _identified(path):
        return open_checkpoint(path)


@contextmanager
def _identified(path: Path) -> Iterator[None]:
    try:
        yield
    except FirstdriftError as error:
        if isinstance(error, StorageError):
            raise type(error)(f"{OPEN}: {error}") from error
        known = _is_config(path) or _first_bytes(path) in (b"APR\0", b"APRN", b"GGUF")
        raise FormatError(f"{ARCHITECTURE if known else MAGIC}: {error}") from error


def architecture_of(checkpoint: Checkpoint, *, by_names: bool = True) -> Architecture:
    """The ten fields of an open checkpoint. `by_names` also compares the family with that of the tensor names."""
    said, place = metadata_of(checkpoint)
    return _checked(kind_of(checkpoint), said, str(place), checkpoint.entries, by_names=by_names)


def metadata_of(checkpoint: Checkpoint) -> tuple[Mapping[str, Json], Path]:
    """What a checkpoint says of its model, and where; plain weights may have a config.json beside them that does."""
    path = checkpoint.path
    beside = (path if path.is_dir() else path.parent) / CONFIG
    if kind_of(checkpoint) != "config" or "vocab_size" in checkpoint.metadata or not beside.is_file():
        return checkpoint.metadata, beside if checkpoint.format == HF else path
    with _identified(beside):
        return read_json_object(beside), beside


def labels_of(kind: str, metadata: Mapping[str, Json]) -> dict[str, str]:
    """Everything that metadata of a kind calls its model, by key."""
    return {key: label for key in NAME_KEYS[kind] if (label := _text(metadata.get(key)))}


def refuse_contradiction(kind: str, metadata: Mapping[str, Json], place: str, names: Iterable[str] = ()) -> None:
    """Refuse a model that is called two things, by its metadata or its tensors: an encoder and a decoder, or members of
    two families."""
    biased = metadata.get("attention_bias") is True or (kind == "gguf" and OUTPUT_BIAS in names)  # no key there says it
    said = contradiction(labels_of(kind, metadata), family_of_names(names), biased=biased)
    if said is not None:
        identifier, _, what = said.partition(": ")
        only = ", and only decoder-only models can be used here" if identifier == ENCODER else ""
        raise WeightsError(f"{identifier}: {place}: {what}{only}; one of the two is of another model")


def require_decoder(architecture: Architecture, place: object) -> None:
    """Refuse an encoder where a decoder is wanted."""
    if architecture.encoder:
        raise WeightsError(
            f"{ENCODER}: {place}: {architecture.name} is an Encoder (hidden_size {architecture.hidden_size}, "
            f"{architecture.num_hidden_layers} layers, vocab_size {architecture.vocab_size}), and only decoder-only "
            "models can be used here; give a decoder's checkpoint"
        )


def _checked(
    kind: str, metadata: Mapping[str, Json], place: str, names: Iterable[str], *, by_names: bool = True
) -> Architecture:
    labels = labels_of(kind, metadata)
    name = next(filter(is_encoder, labels.values()), next(iter(labels.values()), None))
    hybrid = hybrid_of(name)
    if hybrid is not None:
        raise FormatError(f"{HYBRID}: {place}: {name} has {hybrid} layers, which the ten fields do not describe")
    values, derived, problems = _values(kind, metadata, names, name)
    if problems:
        said = "; ".join(problems)
        raise FormatError(f"{ARCHITECTURE}: {place}: does not say what model it is of: {said}; add what is missing")
    model = "(hidden_size {hidden_size}, {num_hidden_layers} layers, vocab_size {vocab_size})".format(**values)
    refuse_contradiction(kind, metadata, f"{place} {model}", names if by_names else ())
    family = next((found for label in labels.values() if (found := family_of_metadata(label))), None)
    return Architecture(**values, name=name, family=family or family_of_names(names), derived=derived)


def _values(
    kind: str, metadata: Mapping[str, Json], names: Iterable[str], name: str | None
) -> tuple[dict[str, Json], tuple[str, ...], list[str]]:
    """The fields, those of them that no key says, and what is wrong with the rest."""
    values: dict[str, Json] = {}
    problems = []
    derived: tuple[str, ...] = ()
    for field in fields(Fields):
        if kind == "gguf" and field.name == "tie_word_embeddings":
            values[field.name] = not {GGUF_TIED_BY, "lm_head.weight"} & set(names)
            derived = (field.name,)
            continue
        spelled = _FIELD[field.name]
        key = {"config": spelled.config, "apr": spelled.apr, "gguf": f"{name or '?'}.{spelled.gguf}"}[kind]
        found, key = _nested_rope(metadata, key) if kind == "config" else (metadata.get(key), key)
        wrong = _wrong(found, str(field.type))
        if wrong:
            problems.append(f"{key} {wrong}" if key == field.name else f"{field.name} ({key}) {wrong}")
        values[field.name] = float(found) if found is not None and not wrong and field.type == "float" else found
    heads, groups = values["num_attention_heads"], values["num_kv_heads"]
    if not problems and heads % groups:
        problems.append(f"num_attention_heads {heads} is no multiple of num_kv_heads {groups}")
    return values, derived, problems


def _nested_rope(metadata: Mapping[str, Json], key: str) -> tuple[Json, str]:
    """`rope_theta` of a config.json, which newer ones keep in a table of its own."""
    table = metadata.get("rope_parameters")
    if key == "rope_theta" and key not in metadata and isinstance(table, dict):
        return table.get(key), f"rope_parameters.{key}"
    return metadata.get(key), key


def _wrong(value: Json, kind: str) -> str | None:
    """What is wrong with a field's value; JSON's true is no number, and 14.0 no integer."""
    if value is None:
        return "is missing"
    if kind == "bool":
        return None if isinstance(value, bool) else f"is {value!r}, not true or false"
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else int | float):
        return f"is {value!r}, not {'a whole' if kind == 'int' else 'a'} number"
    return None if 0 < value < LARGEST else f"is {value!r:.40}, not above 0 and below 2**63"


def _text(value: Json) -> str | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and first else None


def kind_of(checkpoint: Checkpoint) -> str:
    """Whose words a checkpoint's metadata is in: of GGUF, of APR, or of a config.json."""
    return next((kind for kind in ("gguf", "apr") if checkpoint.format.startswith(kind)), "config")


def weights_in(directory: Path) -> bool:
    """Whether there is a file of weights in a directory."""
    return any(file.suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".apr") for file in directory.iterdir())


def _is_config(path: Path) -> bool:
    return path.name.endswith(".json") and not path.name.endswith(".index.json")


def _first_bytes(path: Path) -> bytes:
    if not path.is_file():
        return b""
    return read_regular(path, 4)


LLAMA_370M = Architecture(
    vocab_size=50_257, hidden_size=1024, num_attention_heads=16, num_kv_heads=4, intermediate_size=2816,
    num_hidden_layers=24, max_position_embeddings=4096, rope_theta=10_000.0, rms_norm_eps=1e-5,
    tie_word_embeddings=True, name="LlamaForCausalLM", family="llama",
)  # fmt: skip
QWEN2_0_5B = Architecture(
    vocab_size=151_936, hidden_size=896, num_attention_heads=14, num_kv_heads=2, intermediate_size=4864,
    num_hidden_layers=24, max_position_embeddings=32_768, rope_theta=1_000_000.0, rms_norm_eps=1e-6,
    tie_word_embeddings=True, name="Qwen2ForCausalLM", family="qwen2",
)  # fmt: skip
PRESETS = {"llama-370m": LLAMA_370M, "qwen2-0.5b": QWEN2_0_5B}
LLAMA_370M_BAND = (366_000_000, 374_000_000)  # parameters, a tied output layer counted too
BIASED = frozenset({"qwen2"})  # families whose q, k and v have a bias
