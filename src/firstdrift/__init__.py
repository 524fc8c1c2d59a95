"""Find the first tensor where two implementations of a neural network part, and say why.

Names are resolved on first use, so that `import firstdrift` costs next to nothing, and using it numpy, nothing heavier.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import aprt as aprt
    from .aprt import maybe_save as maybe_save
    from .aprt import output_path as output_path
    from .aprt import read_stage_file as read_stage_file
    from .aprt import write_stage_file as write_stage_file
    from .capture.answers import Calibration as Calibration
    from .capture.answers import Estimate as Estimate
    from .capture.tracing import estimate as estimate
    from .capture.tracing import trace as trace
    from .capture.tracing import trace_grads as trace_grads
    from .capture.tracing import trace_weights as trace_weights
    from .capture.tracing import traced_grads as traced_grads
    from .compare.comparison import assert_same as assert_same
    from .compare.comparison import compare_pairs as compare_pairs
    from .compare.comparison import diff as diff
    from .compare.open_trace import open_trace as open_trace
    from .compare.sensitivity import Power as Power
    from .compare.sensitivity import power as power
    from .core.records import Record as Record
    from .core.sites import Site as Site
    from .core.stages import SavePlan as SavePlan
    from .core.taps import tap as tap
    from .core.traces import Trace as Trace
    from .errors import CaptureError as CaptureError
    from .errors import CaptureWarning as CaptureWarning
    from .errors import FirstdriftError as FirstdriftError
    from .errors import FormatError as FormatError
    from .errors import NotATraceError as NotATraceError
    from .errors import NotFoundError as NotFoundError
    from .errors import SelectionError as SelectionError
    from .errors import SiteError as SiteError
    from .errors import StageError as StageError
    from .errors import StorageError as StorageError
    from .errors import TraceExistsError as TraceExistsError
    from .errors import TraceInUseError as TraceInUseError
    from .errors import VersionError as VersionError
    from .errors import WeightsError as WeightsError
    from .judge.measure.pair_rows import PairRow as PairRow
    from .judge.measure.result import Result as Result
    from .judge.measure.result import Verdict as Verdict
    from .live.calibration import calibrate as calibrate
    from .live.checking import check as check
    from .pretrain.building import build_trainer_with_init as build_trainer_with_init
    from .store.writer import Writer as Writer
    from .sweeping.sweeps import sweep as sweep
    from .weights.loading.architecture import Architecture as Architecture
    from .weights.loading.architecture import read_architecture as read_architecture
    from .weights.loading.load import load_init_tensors as load_init_tensors
    from .weights.loading.load import load_weights as load_weights
    from .weights.loading.load import populate_from_init as populate_from_init
    from .weights.loading.proof import Arrival as Arrival
    from .weights.loading.proof import Loaded as Loaded

_NAMES = {  # by the module that they are from
    "aprt": ("maybe_save", "output_path", "read_stage_file", "write_stage_file"),
    "capture.answers": ("Calibration", "Estimate"),
    "capture.tracing": ("estimate", "trace", "trace_grads", "trace_weights", "traced_grads"),
    "compare.comparison": ("assert_same", "compare_pairs", "diff"),
    "compare.open_trace": ("open_trace",),
    "compare.sensitivity": ("Power", "power"),
    "core.records": ("Record",),
    "core.sites": ("Site",),
    "core.stages": ("SavePlan",),
    "core.taps": ("tap",),
    "core.traces": ("Trace",),
    "errors": (
        "CaptureError", "CaptureWarning", "FirstdriftError", "FormatError", "NotATraceError", "NotFoundError",
        "SelectionError", "SiteError", "StageError", "StorageError", "TraceExistsError", "TraceInUseError",
        "VersionError", "WeightsError",
    ),
    "judge.measure.pair_rows": ("PairRow",),
    "judge.measure.result": ("Result", "Verdict"),
    "live.calibration": ("calibrate",),
    "live.checking": ("check",),
    "pretrain.building": ("build_trainer_with_init",),
    "store.writer": ("Writer",),
    "sweeping.sweeps": ("sweep",),
    "weights.loading.architecture": ("Architecture", "read_architecture"),
    "weights.loading.load": ("load_init_tensors", "load_weights", "populate_from_init"),
    "weights.loading.proof": ("Arrival", "Loaded"),
}  # fmt: skip
_HOME = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__", "aprt"])


def __getattr__(name: str) -> Any:
    if name == "aprt":
        return import_module(".aprt", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'firstdrift' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
