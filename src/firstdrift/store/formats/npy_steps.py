"""npy step directories: `stepNNN/<probe>.<phase>[.<port>][.sNNN].npy`, as training harnesses in C dump them.

Forward order comes from `probes.txt` (one probe a line) in the step directory or beside it, or from a file
given as `order`; failing that it is inferred from the names, and the trace says so. File times are not used.
What gradients are of is in `gradient_of.json`, in the step directory or beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.lib import format as numpy_format

from ...core.arrays import as_float32
from ...core.atomic import replacing
from ...core.causality import forward_names
from ...core.dtypes import ML_NAMES
from ...core.mapped import MappedFile, stamp_of
from ...core.records import Record
from ...core.regular import check_regular, open_regular
from ...core.sites import PHASE_RANK, Site, check_site, default_port, first_repeated
from ...core.traces import Array, Trace
from ...errors import FormatError, NotATraceError, SiteError, TraceExistsError, naming, storage, without_raising
from .gradient_file import FILE as GRADIENT_OF
from .gradient_file import read_gradient_of, write_gradient_of
from .npy import NpyHeader, read_npy_header
from .probe_order import infer_order
from .site_keys import PHASE_ALIASES

NAME = "npy"
PROBES = "probes.txt"
FILES = "[!.]*.npy"  # hidden files are the system's, not a harness's
LOSS = "loss"  # the probe of the loss gradient; it needs no line in the manifest
MAX_MANIFEST = 16 << 20
_STEP = re.compile(r"step([0-9]{1,18})")
_SAMPLE = re.compile(r"s([0-9]{1,18})")
_TAGS = (PHASE_RANK.keys() | PHASE_ALIASES.keys()) - {"weight"}  # which is a port, too
_TAG_OF = {phase: tag for tag, phase in PHASE_ALIASES.items()}
_READABLE = "check that it exists and that you may read it"


@without_raising
def recognise(path: Path) -> bool:
    """Whether a directory holds npy files, or step directories that do."""
    return path.is_dir() and (any(path.glob(FILES)) or any(any(d.glob(FILES)) for _, d in _step_directories(path)))


def read(path: Path, order: Path | None = None) -> Trace:
    """Open one step directory, or a directory of them."""
    with storage(path, "read the npy files", _READABLE):
        path.stat()
        steps = _step_directories(path) or [(_step_number(path), path)]
        if steps[0][1] != path and (mixed := next(path.glob(FILES), None)):
            raise FormatError(f"{mixed}: lies beside step directories; move it into the step it belongs to")
        found = [(_site(file, step), file) for step, directory in steps for file in directory.glob(FILES)]
        found.sort(key=_within_a_probe)
        if not found:
            raise NotATraceError(f"{path}: holds no npy files; expected stepNNN/<probe>.<phase>[.sNNN].npy")
        sites, files = [site for site, _ in found], [file for _, file in found]
        headers = [_header(file) for file in files]
        probes, notes = _forward_probes(path, steps, order, sites, headers)
        gradient_of = read_gradient_of(_beside(steps))
    rank = {probe: number for number, probe in enumerate(probes)}
    lines, special = [], {}
    for number, (site, header) in enumerate(zip(sites, headers, strict=True)):
        place = (number, header.offset, header.nbytes)
        lines.append(Record(site, header.dtype, header.shape, place, {"order": rank.get(site.name, len(rank))}))
        if not header.is_plain and header.nbytes:
            special[site] = _reader(files[number].absolute(), header)
    if (same := first_repeated(sites)) is not None:
        first, second = same
        raise FormatError(f"{files[first]} and {files[second].name}: both are {sites[first]}; remove one")
    lines.sort(key=lambda record: record.details["order"])  # files stand by name, a trace by what ran first
    recorded = {site.name for site in sites}
    problems = [
        f"probe {probe!r} is in {order.name if order else PROBES} but has no file"
        for probe in probes
        if probe not in recorded
    ]
    said = {"probes": probes, **gradient_of}
    return Trace(path, NAME, lines, files.__getitem__, header=said, problems=problems, notes=notes, special=special)


def write(trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    """Write a trace as step directories with a manifest. Returns what had to change on the way."""
    names = {record.site: _file_name(record) for record in trace.lines if record.at is not None}
    recorded = dict.fromkeys([*forward_names(trace.lines), *(record.site.name for record in trace.records)])
    probes = [name for name in recorded if name != LOSS]
    widened = 0
    with storage(path, "write the npy files", "choose a directory that you may write, with room for it"):
        _make_room(path, overwrite)
        path.mkdir(parents=True, exist_ok=True)
        with replacing(path / PROBES) as file:  # first, so that a write that fails has promised what is missing
            file.write("".join(f"{probe}\n" for probe in probes).encode())
        write_gradient_of(path, trace.header)
        for record in trace.records:
            if record.at is None:
                continue
            directory = path / f"step{record.site.step:03d}"
            directory.mkdir(exist_ok=True)
            array = trace.array(record)
            if record.dtype in ML_NAMES:
                array, widened = as_float32(array), widened + 1
            with replacing(directory / names[record.site]) as file:
                array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
                numpy_format.write_array(file, array, version=(1, 0), allow_pickle=False)
            advance(record.nbytes)
    trace.check_unchanged()
    left = sum(record.at is None for record in trace.lines)
    return [
        *([f"{widened} tensors were widened to float32, exactly: npy has no bfloat16 or float8"] if widened else []),
        *([f"{left} sites without values were left out: npy can only hold tensors"] if left else []),
    ]


def _make_room(path: Path, overwrite: bool) -> None:
    """Refuse what is there, or remove what a reader would take for a part of the new trace."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite or not path.is_dir():
        raise TraceExistsError(f"{path}: is not an empty directory; choose another path, or overwrite (--force)")
    if any(path.glob(FILES)):
        raise TraceExistsError(f"{path}: has npy files outside of step directories; choose another path")
    for _, directory in _step_directories(path):
        for stale in [*directory.glob(FILES), directory / PROBES, directory / GRADIENT_OF]:
            stale.unlink(missing_ok=True)  # samples of an earlier, larger run must not linger


def check_same_probes(reference: Trace, candidate: Trace) -> None:
    """Two npy traces are comparable only when they were made from one probe list."""
    of_reference, of_candidate = reference.header.get("probes"), candidate.header.get("probes")
    if of_reference is None or of_candidate is None or of_reference == of_candidate:
        return
    only = sorted(set(of_reference) - set(of_candidate)), sorted(set(of_candidate) - set(of_reference))
    what = (
        f"{reference.path} alone has {only[0]}, {candidate.path} alone has {only[1]}"
        if any(only)
        else f"they stand in another order in {reference.path} than in {candidate.path}"
    )
    raise FormatError(f"the probe lists differ: {what}; make both sides from one {PROBES}")


def _step_directories(path: Path) -> list[tuple[int, Path]]:
    if not path.is_dir():
        return []
    found = [(int(m[1]), entry) for entry in path.iterdir() if (m := _STEP.fullmatch(entry.name)) and entry.is_dir()]
    return sorted(found)


def _step_number(path: Path) -> int:
    match = _STEP.fullmatch(path.resolve().name)
    return int(match[1]) if match else 0


def _site(file: Path, step: int) -> Site:
    """`<probe>.<phase>[.<port>][.sNNN].npy`; the probe is everything before the first dot."""
    probe, *rest = file.name.removesuffix(".npy").split(".")
    phase = PHASE_ALIASES.get(rest[0], rest[0]) if rest else ""
    if phase not in PHASE_RANK or not probe:
        known = ", ".join([*PHASE_RANK, *PHASE_ALIASES])
        raise FormatError(
            f"{file}: after the probe (a name without dots) {(rest or [''])[0]!r} is not a phase; use one of {known}"
        )
    sample = None
    if len(rest) > 1 and (match := _SAMPLE.fullmatch(rest[-1])):
        sample = int(match[1])
        rest.pop()
    if any(part in _TAGS or _SAMPLE.fullmatch(part) for part in rest[1:]):
        raise FormatError(f"{file}: a second phase or sample follows {rest[0]!r}; a probe must have no dot, rename it")
    with naming(str(file)):
        return check_site(Site(step, phase, probe, ".".join(rest[1:]) or default_port(phase), 0, sample))


def _within_a_probe(found: tuple[Site, Path]) -> tuple[bool, bool, str, Path]:
    """What goes in before what comes out, a weight before its bias."""
    site, file = found
    return not site.port.startswith("in."), site.port != "weight", site.port, file


def _header(file: Path) -> NpyHeader:
    with open_regular(file) as stream:
        return read_npy_header(stream, file.stat().st_size, str(file))


def _reader(file: Path, header: NpyHeader) -> Callable[[], Array]:
    """Fortran order and big-endian bytes are read as they are: another stride, another byte order."""
    stamp = stamp_of(file.stat())

    def read_file() -> Array:
        data = MappedFile(file, stamp).copy(header.offset, header.nbytes)
        return data.view(header.stored).reshape(header.shape, order="F" if header.fortran else "C")

    return read_file


def _forward_probes(
    path: Path, steps: list[tuple[int, Path]], order: Path | None, sites: list[Site], headers: list[NpyHeader]
) -> tuple[list[str], list[str]]:
    """The probes in forward order, and a note when that order is a guess."""
    recorded = {site.name for site in sites} - {LOSS}
    own = [directory / PROBES for directory in _beside(steps)]
    manifests = [order] if order else [file for file in dict.fromkeys(own) if file.is_file()]
    if not manifests and (shared := _parent(path) / PROBES).is_file():  # one list above the dumps of both sides
        manifests = [shared]
    if manifests:
        probes = _read_manifest(manifests[0])
        for other in manifests[1:]:
            if _read_manifest(other) != probes:
                raise FormatError(f"{manifests[0]} and {other}: list different probes; keep one of them")
        unknown = sorted(recorded - set(probes))
        if unknown:
            raise FormatError(f"{manifests[0]}: does not list {', '.join(unknown)}, recorded in {path}; add them")
        return probes, []
    lengths = {
        site.name: header.shape[-1] for site, header in zip(sites, headers, strict=True)
        if site.phase in ("fwd", "agrad") and header.shape
    }  # fmt: skip
    return infer_order(recorded, lengths), [f"forward order was inferred from names; put a {PROBES} beside the steps"]


def _beside(steps: list[tuple[int, Path]]) -> list[Path]:
    """Where what is said of the steps may lie: in one of them, or above them."""
    return [directory for _, directory in steps] + [_parent(directory) for _, directory in steps]


def _parent(directory: Path) -> Path:
    return directory.parent if directory.name not in ("", "..") else directory.resolve().parent


def _read_manifest(file: Path) -> list[str]:
    with storage(file, "read the probe list", _READABLE):
        check_regular(file)
        if file.stat().st_size > MAX_MANIFEST:
            raise FormatError(f"{file}: {file.stat().st_size} bytes are no probe list; one probe a line is expected")
        try:
            lines = file.read_bytes().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise FormatError(f"{file}: is not UTF-8 at byte {error.start}; save it as plain text") from None
    probes = [line.strip() for line in lines if line.strip()]
    for probe in probes:
        _check_probe(probe, str(file))
    if (same := first_repeated(probes)) is not None:
        raise FormatError(f"{file}: lists {probes[same[0]]!r} twice; give every probe its own name")
    return [probe for probe in probes if probe != LOSS]


def _check_probe(probe: str, place: str) -> None:
    if any(mark in probe for mark in "./\\\0\ufeff") or probe.splitlines() != [probe] or probe != probe.strip():
        raise SiteError(
            f"{place}: probe {probe!r} is empty or has a dot, slash, line break or outer space, which file names or "
            f"{PROBES} cannot carry; rename it"
        )


def _file_name(record: Record) -> str:
    _, phase, name, port, call, sample = record.site
    _check_probe(name, str(record.site))
    if call or not port or _SAMPLE.fullmatch(port.rpartition(".")[2]) or any(mark in port for mark in "/\\\0"):
        raise SiteError(f"{record.site}: npy step directories cannot say its call or port; export to npz instead")
    parts = [name, _TAG_OF.get(phase, phase)]
    if phase == "optim" or port != "out" or default_port(phase) != port:  # a parameter's port is spelled out, as C does
        parts.append(port)
    if sample is not None:
        parts.append(f"s{sample:03d}")
    return ".".join(parts) + ".npy"
