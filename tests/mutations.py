"""Accidents and malice: bytes changed blindly, and JSON changed where it says something."""

import json
from random import Random

NUMBERS = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 63, 64, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 20, 1 << 24, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
WORDS = tuple(
    word.encode("utf-8", "surrogatepass")
    for word in (
        "null", "true", "NaN", "-Infinity", "1e999", "-1", "1.5", "9" * 25, "9" * 5000, '"', "'", "{", "}", "[", "]",
        ":", ": ", ",", "\n", "\r\n", "\t", "#", "&a ", "*a", "!!python/name:os.system ", "---\n", "? ", "- ", "|\n",
        "\\", "\\u0000", "\\ud800", "\ud800", "\0", "\x1b[2J", "\u202e", "é", "{}", "*", "**", "{}{}", "..", "../", "/",
        "0:1:0", "0:99999999999999999999", ";", "=", "@", "[" * 3000, "(", ")", "f32", "fwd", "step",
    )
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 2, 1 << 20, 1 << 31, 1 << 53, 1 << 63, -(1 << 63), 1 << 70, 0.5, 1e308, "nan", "inf",
    "", "a", "f32", "f64", "bool", "fwd", "weight", "grad", "out", "..", "a/b", "/etc", "\0", "\x1b[2J", "\ud800",
    "é" * 300, [], [0], [-1], [1 << 40], [1, 2, 3], [[[]]], [None], ["a"], {}, {"a": 1}, {"": {}}, {"float": "nan"},
    {"dtype": "x"},
)  # fmt: skip


def mutated(data: bytes, chance: Random, spare: tuple[bytes, ...] = ()) -> bytes:
    """The bytes after one to four accidents; `spare` are other bytes that pieces may come from."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        data = chance.choice(WAYS)(data, chance, spare)
    return data


def _at(data: bytes, chance: Random) -> int:
    """A place, rather often near the beginning, where headers are."""
    return chance.randint(0, min(len(data), 160) if chance.random() < 0.4 else len(data))


def _flip(data, chance, spare):
    at = _at(data, chance)
    return data if at >= len(data) else data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _number(data, chance, spare):
    at, width = _at(data, chance), chance.choice((1, 2, 4, 8))
    number = chance.choice(NUMBERS) & (1 << 8 * width) - 1
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def _digits(data, chance, spare):
    """A number that is written out becomes another."""
    at = _at(data, chance)
    while at < len(data) and not data[at : at + 1].isdigit():
        at += 1
    to = at
    while to < len(data) and data[to : to + 1].isdigit():
        to += 1
    return data[:at] + str(chance.choice(NUMBERS) * chance.choice((1, 1, 1, -1))).encode() + data[to:]


def _word(data, chance, spare):
    at, word = _at(data, chance), chance.choice(WORDS)
    return data[:at] + word + data[at + chance.choice((0, len(word))) :]


def _noise(data, chance, spare):
    at = _at(data, chance)
    return data[:at] + chance.randbytes(chance.randint(1, 16)) + data[at:]


def _cut(data, chance, spare):
    return data[: _at(data, chance)]


def _drop(data, chance, spare):
    at, to = sorted((_at(data, chance), _at(data, chance)))
    return data[:at] + data[to:]


def _again(data, chance, spare):
    at, to = sorted((_at(data, chance), _at(data, chance)))
    return data[:to] + data[at:]


def _swap(data, chance, spare):
    """Two lines change places."""
    lines = data.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _other(data, chance, spare):
    """A piece of another file."""
    if not spare:
        return data
    piece = chance.choice(spare)
    start = chance.randint(0, len(piece))
    at = _at(data, chance)
    return data[:at] + piece[start : start + chance.randint(0, 80)] + data[at:]


def _meaning(data, chance, spare):
    """A line of JSON, or all of it, in which one value is another."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    for start, end in ((at, at + 1), (0, len(lines))):
        try:
            said = json.loads(b"\n".join(lines[start:end]))
        except (ValueError, RecursionError):
            continue
        text = json.dumps(with_another_value(said, chance), ensure_ascii=True)
        return b"\n".join([*lines[:start], text.encode(), *lines[end:]])
    return data


WAYS = (_flip, _number, _digits, _word, _noise, _cut, _drop, _again, _swap, _other, _meaning, _meaning, _meaning)


def with_another_value(said, chance: Random):
    """The same JSON with one value replaced, removed, or put where another was."""
    if not said or not isinstance(said, dict | list) or chance.random() < 0.1:
        return chance.choice(VALUES)
    changed = said.copy()
    key = chance.choice(list(said)) if isinstance(said, dict) else chance.randrange(len(said))
    deeper = isinstance(said[key], dict | list) and said[key]
    if deeper and chance.random() < 0.8:
        changed[key] = with_another_value(said[key], chance)
    elif chance.random() < 0.15:
        del changed[key]
    elif chance.random() < 0.2 and isinstance(said, dict):
        changed[key] = said[chance.choice(list(said))]
    else:
        changed[key] = chance.choice(VALUES)
    return changed
