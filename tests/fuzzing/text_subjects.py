"""Everything that people write or edit: maps, cases, ledgers, runs, token shards, tokenizers, and command lines."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from tests.fuzzing.feeding import Subject
from tests.fuzzing.trace_subjects import native, parts_of, recorded

import firstdrift as fd
from firstdrift.aprt import StageHeader
from firstdrift.cli.main import INTERNAL_ERROR, cli
from firstdrift.core.stages import parse_layer_range, parse_stages
from firstdrift.core.strict_json import decode_object, encode
from firstdrift.decoder.tokenizing import embedded
from firstdrift.demo.spotter_files import PROBES, read_probes, read_weights, write_weights
from firstdrift.errors import FirstdriftError, FormatError
from firstdrift.pair.mapping.parse import read_map
from firstdrift.pretrain.data.corpora import find_corpus, read_tokens
from firstdrift.pretrain.data.training_tokenizer import open_tokenizer
from firstdrift.pretrain.showing import run_json, run_text
from firstdrift.sweeping.cases import parse_cases
from firstdrift.sweeping.ledger import open_ledger
from firstdrift.sweeping.templates import check, split
from firstdrift.weights.json_file import read_json_object
from firstdrift.weights.loading.maps import read_map as read_load_map

MAP = b"""version: 1
pairs:
  "layers.{}.attn": {candidate: "h.{}.attn", port: {out: out}, phase: fwd, tolerance: 1/32}
  embed: wte  # the first
  qkv: {candidate: [q, k, v], concatenate: 0, transpose: true}
  "mlp.*": ["ffn.*"]
  norm: {ignore: not there}
candidate_ignore:
  "cache.{}": {ignore: empty, phase: [fwd, grad]}
  mask: never read
"""
LOAD_MAP = b"""wte.weight: {to: [embed.weight, head.weight], tie: true}
"h.{}.attn.c_attn.weight": {to: ["l.{}.q.weight", "l.{}.k.weight"], split: 0, transpose: true}
"h.{}.mlp.*": "l.{}.mlp.*"
gate: {to: gate_up, join: 0, place: 0, steps: [{transpose: true}, {reshape: [2, 3]}]}
dropped: null
"""
WORDS = b"all,-embedding\n0..3\nstart=0:320:32\nrun {start} {seed:03} {out}\nAPRT"
CASES = b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'
DOCUMENTS = b'{"text": "one"}\n{"text": "two"}\n'
REFERENCE = [fd.Site(0, "fwd", name, "out") for name in ("layers.0.attn", "embed", "qkv", "mlp.up", "norm")]
CANDIDATE = [fd.Site(0, "fwd", name, "out") for name in ("h.0.attn", "wte", "q", "k", "v", "ffn.up", "mask", "cache.1")]


def text_file(name: str, text: bytes, read: Callable[[Path], object]):
    """A subject that is one file."""
    return lambda scratch: Subject({name: text}, lambda directory: read(directory / name))


def _map(path: Path) -> None:
    mapping = read_map(path)
    for site in (*REFERENCE, *CANDIDATE):
        mapping.find(site), mapping.ignores_candidate(site)
    mapping.check(REFERENCE, CANDIDATE)


def _load_map(path: Path) -> None:
    found = read_load_map(path)
    for name in ("wte.weight", "h.3.mlp.up.weight", "h.0.attn.c_attn.weight", "gate"):
        hit = found.find(name)
        if hit is not None:
            hit[0].names(hit[1])


def _json(path: Path) -> None:
    """What is read can be written, and is the same when it is read again."""
    said = decode_object(path.read_bytes().decode("utf-8", "replace"))
    assert decode_object(encode(said)) == said


def _words(path: Path) -> None:
    """Short texts of the command line, a line each."""
    data = path.read_bytes()
    text = data.decode("utf-8", "replace")
    stages, layers, cases, template, _ = (text.split("\n") + [""] * 5)[:5]
    for attempt in (
        lambda: StageHeader.parse(data[-16:]),
        lambda: parse_stages(stages),
        lambda: parse_layer_range(layers),
        lambda: parse_cases([cases]),
        lambda: check(split(template, "reference"), ("start", "seed"), "reference"),
    ):
        try:
            attempt()
        except FirstdriftError as error:
            assert str(error)


def ledger(scratch: Path) -> Subject:
    """The rows that a sweep has left, read by the next one."""
    from firstdrift import sweep

    def side(factor):
        def run(out, width):
            with fd.Writer(out) as writer:
                writer.put("", "input", np.ones(width, np.float32), port="0")
                writer.put("layer", "fwd", np.arange(width, dtype=np.float32) * np.float32(factor))

        return run

    sweep({"width": [8, 16]}, side(1.0), side(1.5), jobs=1, out=scratch / "s")
    rows = (scratch / "s" / "results.jsonl").read_bytes()
    identity = {
        key: item for key, item in json.loads(rows.split(b"\n")[0]).items() if key not in ("schema", "firstdrift")
    }

    def read(directory: Path) -> None:
        with open_ledger(directory / "s", identity) as opened:
            for row in opened.rows.values():
                encode(row.to_json())

    return Subject({"s/results.jsonl": rows}, read)


def run_record(scratch: Path) -> Subject:
    """What `show` reads of a training run: run.json and its log."""
    from firstdrift.decoder.decoder_config import PRESETS
    from firstdrift.pretrain.run_record import Log, Record, write_record
    from firstdrift.pretrain.run_settings import Settings

    data = {"path": "d", "tokens": 10, "training_windows": 3, "held_out_windows": 1}
    record = Record(
        Settings.of(), PRESETS["tiny"], {"name": "m", "architecture": "LlamaForCausalLM"}, "cpu", data,
        init={"path": "i", "tensors": 3}, gap={"given": 1.0, "random": 2.0, "nats": 1.0},
    )  # fmt: skip
    write_record(scratch, record)
    with Log(scratch / "log.jsonl") as log:
        log.append("step", step=1, loss=2.0)
        log.append("eval", step=1, val_loss=float("nan"))
        log.append("end", step=1, reason="done")

    def read(directory: Path) -> None:
        run_text(directory)
        encode(run_json(directory))

    return Subject(parts_of(scratch), read)


def shards(scratch: Path) -> Subject:
    """Token shards, with and without a header, and JSON lines of text."""
    np.save(scratch / "a.npy", np.arange(20, dtype=np.uint16))
    (scratch / "b.bin").write_bytes(np.arange(40, dtype="<u4").tobytes())
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, 6
    (scratch / "c.bin").write_bytes(head.tobytes() + np.arange(6, dtype="<u2").tobytes())

    def read(directory: Path) -> None:
        failed = None
        for name in ("a.npy", "b.bin", "c.bin"):
            try:
                read_tokens(find_corpus(directory / name), 100, None)
            except FormatError as error:
                failed = error
        if failed is not None:
            raise failed

    return Subject(parts_of(scratch), read)


class Letters:
    """A tokenizer whose tokens are bytes."""

    end = 0

    def encode_batch(self, texts):
        return [list(text.encode("utf-8", "replace")) for text in texts]


def _texts(path: Path) -> None:
    read_tokens(find_corpus(path), 256, Letters())


def tokenizer(scratch: Path) -> Subject:
    """The files of a tokenizer."""
    (scratch / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "</s>": 3}))
    (scratch / "merges.txt").write_text("#version: 0.2\na b\n")
    (scratch / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')

    def read(directory: Path) -> None:
        open_tokenizer(directory).encode_batch(["ab", ""])

    return Subject(parts_of(scratch), read)


BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"], "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 3,
}  # fmt: skip
PIECES = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "a", "b", "ab"],
    "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0], "tokenizer.ggml.token_type": [2, 3, 1, 1, 1],
    "tokenizer.ggml.bos_token_id": 1,
}  # fmt: skip
OF_APR = {
    "tokenizer.vocabulary": {"a": 0, "b": 1, "ab": 2}, "tokenizer.merges": ["a b"], "architecture": "qwen2",
    "special_tokens": {"eos": "ab"},
}  # fmt: skip


def embedded_tokenizers(scratch: Path) -> Subject:
    """The tokenizers that the metadata of checkpoints hold."""
    whole = {f"{number}.json": json.dumps(said).encode() for number, said in enumerate((BYTE_LEVEL, PIECES, OF_APR))}

    def read(directory: Path) -> None:
        failed = None
        for name in whole:
            try:
                made = embedded(read_json_object(directory / name), name)
                if made is not None:
                    made.encode("ab a")
            except FormatError as error:
                failed = error
        if failed is not None:
            raise failed

    return Subject(whole, read)


def kws_weights(scratch: Path) -> Subject:
    """The weights of the demonstration."""
    shapes = {"conv.weight": (2, 3), "bias": (2,)}
    write_weights(scratch / "w.bin", {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    return Subject(parts_of(scratch), lambda directory: read_weights(directory / "w.bin", shapes))


COMMANDS = (
    ["show", "t"], ["show", "t", "fc", "--limit", "3", "--json"], ["show", "p", "0:out", "--program"],
    ["show", "t", "--phase", "fwd", "--only", "f*"], ["show", "t", "--verify", "--format", "trace"],
    ["diff", "t", "t", "--only", "fc", "--phase", "fwd"], ["diff", "t", "t", "--json", "--limit", "2"],
    ["diff", "t", "p", "--allow-missing", "*", "--allow-nan", "*"], ["diff", "t", "t", "--map", "m.yml", "--verify"],
    ["isolate", "p", "p", "--module", "0"], ["explain", "gqa-order"], ["explain", "--json"],
    ["weights", "inspect", "w.npz"], ["weights", "diff", "w.npz", "w.npz"], ["power", "t"], ["--help"],
    ["diff", "--help"],
)  # fmt: skip


def program_itself(scratch: Path) -> Subject:
    """Commands that read, with their words damaged: an answer, a refusal, and never an internal error."""
    native(scratch)
    recorded(scratch / "p")
    (scratch / "p" / "t").rename(scratch / "q")
    (scratch / "p").rmdir()
    (scratch / "q").rename(scratch / "p")
    (scratch / "m.yml").write_bytes(b"fc: fc\n")
    np.savez(scratch / "w.npz", a=np.ones(3, np.float32))
    places = ("t", "p", "m.yml", "w.npz")

    def read(directory: Path) -> None:
        line = (directory / "words").read_bytes().decode("utf-8", "surrogateescape")
        words = [str(scratch / word) if word in places else word for word in line.split("\n")]
        done = CliRunner().invoke(cli, words)
        if done.exit_code == INTERNAL_ERROR or (done.exception and not isinstance(done.exception, SystemExit)):
            raise RuntimeError(f"{words}: {done.output}") from done.exception

    def put(directory: Path, parts) -> None:
        changed = [data for name, data in parts.items() if data != whole[name]]
        (directory / "words").write_bytes((changed or [whole["0"]])[0])

    whole = {str(number): "\n".join(words).encode() for number, words in enumerate(COMMANDS)}
    return Subject(whole, read, put)


TEXTS = {
    "map": (text_file("m.yml", MAP, _map), 20_000),
    "map of weights": (text_file("m.yml", LOAD_MAP, _load_map), 15_000),
    "json": (text_file("j", b'{"a": [1, 2.5, "x", null], "b": {"c": "nan"}}', _json), 30_000),
    "words": (text_file("w", WORDS, _words), 20_000),
    "cases": (text_file("c.jsonl", CASES, lambda path: parse_cases([f"@{path}"])), 10_000),
    "texts": (text_file("t.jsonl", DOCUMENTS, _texts), 10_000),
    "probes": (text_file("probes.txt", PROBES.read_bytes(), read_probes), 5_000),
    "ledger": (ledger, 15_000),
    "run": (run_record, 10_000),
    "shards": (shards, 10_000),
    "tokenizer": (tokenizer, 5_000),
    "embedded tokenizers": (embedded_tokenizers, 10_000),
    "kws weights": (kws_weights, 5_000),
    "command line": (program_itself, 5_000),
}  # fmt: skip
