"""Records: one line of an index, parsed and validated once, or made and encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii as quote
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import FormatError, SiteError
from .dtypes import ITEMSIZE
from .sites import MAX_INDEX, PARAMETER_PHASES, PHASE_RANK, Site, check_index, check_name, check_site, default_port
from .strict_json import Json, encode, plain, with_floats

MAX_DIMS = 64  # numpy's own limit
MAX_DETAILS = 8 << 20  # of a line, which readers take up to twice as long
SITE_KEYS = ("step", "phase", "name", "port", "call", "sample")
NOT_REQUIRED = "does not require grad"  # the reason of an absent gradient that nothing asks for
NOT_COMPARABLE = "not comparable: "  # begins the reason of an absent tensor that exists but has no plain values
CORE_KEYS = (*SITE_KEYS, "dtype", "shape", "at")
At = tuple[int, int, int]  # file number, offset, bytes

core_fields = itemgetter(*CORE_KEYS)
_CORE = frozenset(CORE_KEYS)
NOTHING: Mapping[str, Json] = MappingProxyType({})


class Record(NamedTuple):
    """One line of a trace: a site, its tensor's dtype, shape and place, and optional facts."""

    site: Site
    dtype: str | None
    shape: tuple[int, ...] | None
    at: At | None
    details: Mapping[str, Json] = NOTHING

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return self.at[2] if self.at else 0

    @property
    def absent(self) -> str | None:
        """Why the run has no such tensor, else None."""
        return self.details.get("absent")

    @property
    def op(self) -> str | None:
        """Operation that made the tensor."""
        return self.details.get("op")

    @property
    def layer(self) -> int | None:
        """Number of the layer."""
        return self.details.get("layer")

    @property
    def order(self) -> int | None:
        """Forward position of the module, if recorded."""
        return self.details.get("order")

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of a tied tensor."""
        return tuple(self.details.get("aliases", ()))

    @property
    def attrs(self) -> dict[str, Json]:
        """Settings of the operation (eps, heads, stride, ...)."""
        return with_floats(self.details.get("attrs", {}))  # type: ignore[no-any-return]

    @property
    def stats(self) -> dict[str, Json] | None:
        """Recorded statistics, or None."""
        found = self.details.get("stats")
        return None if found is None else with_floats(found)

    @property
    def producers(self) -> tuple[Site, ...] | None:
        """Sites it was computed from, or None if not recorded."""
        found = self.details.get("from")
        return None if found is None else tuple(_producer(item, self.site) for item in found)

    def to_json(self) -> dict[str, Json]:
        """The line as JSON."""
        core = (*self.site, self.dtype, None if self.shape is None else list(self.shape), self.at and list(self.at))
        known = dict(zip(CORE_KEYS, core, strict=True))
        return known | dict(self.details)


def parse_record(line: dict[str, Json]) -> Record:
    """Validate one index line. Raises SiteError or FormatError; the caller knows which file and line it was."""
    try:
        step, phase, name, port, call, sample, dtype, shape, at = core_fields(line)
    except KeyError:
        step, phase, name, port, call, sample, dtype, shape, at = _with_defaults(line)
    # tuple.__new__ and one long condition, because this runs for every line of a trace; what the condition
    # does not accept is judged, and put in words, by check_site.
    site: Site = tuple.__new__(Site, (step, phase, name, port, call, sample))
    if not (
        type(name) is str is type(port) is type(phase)
        and type(step) is int is type(call)
        and phase in PHASE_RANK
        and 0 <= step <= MAX_INDEX
        and 0 <= call <= MAX_INDEX
        and (sample is None or (type(sample) is int and 0 <= sample <= MAX_INDEX))
        and name.isascii()
        and port.isascii()
        and ".." not in name
        and ".." not in port
        and len(name) + len(port) < 256
    ):
        check_site(site)
    details = line_details(line, site)
    if "absent" in details or at is None:
        return _without_data(site, dtype, shape, at, details)
    nbytes = _check_tensor(site, dtype, shape)
    if type(at) is not list or len(at) != 3:
        raise _bad_at(at, site)
    number, offset, claimed = at
    if not (
        type(number) is int is type(offset) is type(claimed) and 0 <= number <= MAX_INDEX and 0 <= offset <= MAX_INDEX
    ):
        raise _bad_at(at, site)
    if claimed != nbytes:
        raise FormatError(f"{site}: its dtype and shape take {nbytes} bytes but 'at' claims {claimed!r}; correct it")
    return tuple.__new__(Record, (site, dtype, tuple(shape), (number, offset, nbytes), details))


def _without_data(site: Site, dtype: Json, shape: Json, at: Json, details: Mapping[str, Json]) -> Record:
    """A line that says that there is no tensor, or only its statistics."""
    if "absent" in details:
        if at is not None:
            raise FormatError(f"{site} is absent ({details['absent']!r}) and yet has data at {at}; drop one of the two")
        return Record(site, None, None, None, details)
    _check_tensor(site, dtype, shape)
    if "stats" not in details and "sketch" not in details:
        raise FormatError(f"{site} has no data, no statistics and no 'absent'; write one of the three")
    return Record(site, dtype, tuple(shape), None, details)


def _check_tensor(site: Site, dtype: Json, shape: Json) -> int:
    if dtype is None:
        raise FormatError(f"{site} has no 'dtype'; write one of {', '.join(ITEMSIZE)}")
    if type(dtype) is not str or dtype not in ITEMSIZE:
        raise FormatError(f"{site}: dtype {dtype!r} is not one of {', '.join(ITEMSIZE)}; write one of these")
    if type(shape) is not list:
        raise FormatError(f"{site}: shape {shape!r} is not a list of dimensions; write one")
    return tensor_bytes(site, dtype, shape)


def _bad_at(at: Json, site: Site) -> FormatError:
    return FormatError(f"{site}: 'at' {at!r} is not [file number, offset, bytes]; write three whole numbers")


def tensor_bytes(place: object, dtype: str, shape: Iterable[Any]) -> int:
    """Bytes of a tensor of a plain dtype; `place` is what an error calls it."""
    return count_elements(place, shape, ITEMSIZE[dtype]) * ITEMSIZE[dtype]


def count_elements(place: object, shape: Iterable[Any], itemsize: int = 8) -> int:
    """Elements of a shape, refusing what numpy could not address even when a zero dimension makes it empty."""
    count, addressed, dims = 1, itemsize, 0
    for dim in shape:
        if type(dim) is not int or dim < 0:
            raise FormatError(f"{place}: dimension {dim!r} of shape {shape} is not a whole number from 0; correct it")
        count *= dim
        addressed *= dim or 1
        dims += 1
    if addressed > MAX_INDEX or dims > MAX_DIMS:
        raise FormatError(f"{place}: shape {shape} is beyond {MAX_DIMS} dimensions or 2**63 bytes; write it again")
    return count


def encode_line(site: Site, dtype: str | None, shape: Iterable[int] | None, at: At | None, details: str = "") -> str:
    """One index line without its newline. A template, because json.dumps costs more than writing 64 KiB."""
    step, phase, name, port, call, sample = site
    return (
        f'{{"step":{step},"phase":"{phase}","name":{quote(name)},"port":{quote(port)},"call":{call},'
        f'"sample":{"null" if sample is None else sample},'
        f'"dtype":{"null" if dtype is None else quote(dtype)},'
        f'"shape":{"null" if shape is None else "[" + ",".join(map(str, shape)) + "]"},'
        f'"at":{"null" if at is None else f"[{at[0]},{at[1]},{at[2]}]"}{details}}}'
    )


def encode_details(details: Mapping[str, Json], site: Site) -> str:
    """Optional keys as the tail of a line, validated as a reader would."""
    named = {("from" if key == "producers" else key): item for key, item in details.items()}
    named = {key: item for key, item in named.items() if item is not None or key not in _CHECKS}
    if not named:
        return ""
    if "from" in named:
        if isinstance(named["from"], str | Site):
            raise SiteError(f"{site}: producers {named['from']!r} is one; give a list of them")
        named["from"] = [encode_producer(item, site) for item in named["from"]]
    taken = (_CORE | {"end"}) & named.keys()
    if taken:
        raise SiteError(f"{site}: {', '.join(sorted(taken))} is the format's own; choose another key")
    try:
        text = encode(named)
    except FormatError as error:
        raise SiteError(f"{site}: {error}") from None
    if len(text) > MAX_DETAILS:
        raise SiteError(f"{site}: its details take {len(text)} bytes, more than {MAX_DETAILS}; leave out what is large")
    given = {key: item for key, item in named.items() if key in _CHECKS and key != "from"}  # that was made of sites
    _check_details(plain(given), site)
    return "," + text[1:-1]


def encode_producer(producer: Site | str, site: Site) -> dict[str, Json]:
    """A producer as a line says it: the site's keys, less those that equal the consumer's or the default."""
    if isinstance(producer, str):
        by_name: dict[str, Json] = {"name": producer}
        _producer(by_name, site)
        return by_name
    if not isinstance(producer, Site):
        raise SiteError(f"{site}: producer {producer!r} is a {type(producer).__name__}; give a Site or a name")
    check_site(producer)
    said: dict[str, Json] = {"name": producer.name}
    if producer.phase != site.phase:
        said["phase"] = producer.phase
    if producer.phase == "optim" or producer.port != default_port(producer.phase):
        said["port"] = producer.port
    if producer.call:
        said["call"] = producer.call
    if producer.step != site.step:
        said["step"] = producer.step
    if producer.sample != _default_sample(producer.phase, site):
        said["sample"] = producer.sample
    return said


def _producer(said: Json, site: Site) -> Site:
    if not isinstance(said, dict) or "name" not in said:
        raise FormatError(f"{site}: producer {said!r} in 'from' is not an object with a name; write one")
    phase = said.get("phase", site.phase)
    port = said.get("port", default_port(phase) if isinstance(phase, str) else "out")
    sample = said["sample"] if "sample" in said else _default_sample(phase, site)
    return check_site(Site(said.get("step", site.step), phase, said["name"], port, said.get("call", 0), sample))


def _default_sample(phase: Json, site: Site) -> int | None:
    """A producer is of its consumer's sample, unless it is a parameter, which has none."""
    return None if phase == "optim" or (type(phase) is str and phase in PARAMETER_PHASES) else site.sample


def _with_defaults(line: dict[str, Json]) -> tuple[Json, ...]:
    """The fields of a line that leaves out what has a default."""
    for key in ("phase", "name"):
        if key not in line:
            raise FormatError(f"it has no {key!r}; every line of a tensor needs phase, name, dtype, shape and at")
    phase = line["phase"]
    port = line["port"] if "port" in line else default_port(phase) if isinstance(phase, str) else "out"
    get = line.get
    return (
        get("step", 0), phase, line["name"], port, get("call", 0), get("sample"),
        get("dtype"), get("shape"), get("at"),
    )  # fmt: skip


def line_details(line: dict[str, Json], site: Site) -> Mapping[str, Json]:
    """The optional keys of a line, validated."""
    if len(line) == len(CORE_KEYS):
        return NOTHING
    keys = tuple(line)
    if keys[: len(CORE_KEYS)] == CORE_KEYS:  # as writers of ours put them
        details = {key: line[key] for key in keys[len(CORE_KEYS) :] if line[key] is not None or key not in _CHECKS}
    else:
        details = {
            key: item for key, item in line.items() if key not in _CORE and (item is not None or key not in _CHECKS)
        }
    _check_details(details, site)
    return details


def _typed(kind: type, words: str) -> Callable[[str, Json, Site], None]:
    def check(key: str, item: Json, site: Site) -> None:
        if type(item) is not kind:
            raise FormatError(f"{site}: {key!r} is {item!r}; it must be {words}")

    return check


def _check_aliases(key: str, item: Json, site: Site) -> None:
    _typed(list, "a list of parameter names")(key, item, site)
    for alias in item:
        check_name(alias, "alias")


def _check_dims(key: str, item: Json, site: Site) -> None:
    if type(item) is not list or not all(type(axis) is str for axis in item):
        raise FormatError(f"{site}: {key!r} is {item!r}; it must be a list of axis names")


def _check_producers(key: str, item: Json, site: Site) -> None:
    _typed(list, "a list of producers")(key, item, site)
    for producer in item:
        _producer(producer, site)


def _check_crc(key: str, item: Json, site: Site) -> None:
    if not (type(item) is int and 0 <= item < 2**32):
        raise FormatError(f"{site}: crc32 {item!r} is not a whole number below 2**32; correct the line")


def _check_number(key: str, item: Json, site: Site) -> None:
    check_index(item, key)


_CHECKS: dict[str, Callable[[str, Json, Site], None]] = {
    **{key: _typed(str, "text") for key in ("op", "stage", "note", "absent")},
    **{key: _typed(dict, "an object") for key in ("attrs", "stats")},
    **dict.fromkeys(("order", "layer"), _check_number),
    "dims": _check_dims,
    "aliases": _check_aliases,
    "from": _check_producers,
    "crc32": _check_crc,
}


def _check_details(details: Mapping[str, Json], site: Site) -> None:
    for key, item in details.items():
        if key in _CHECKS:
            _CHECKS[key](key, item, site)
