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
    from .calibration import calibrate as calibrate
    from .capture.calibration import Calibration as Calibration
    from .capture.estimate import Estimate as Estimate
    from .checking import check as check
    from .compare.pair_rows import PairRow as PairRow
    from .compare.result import Result as Result
    from .compare.result import Verdict as Verdict
    from .comparison import assert_same as assert_same
    from .comparison import compare_pairs as compare_pairs
    from .comparison import diff as diff
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
    from .loading.architecture import Architecture as Architecture
    from .loading.architecture import read_architecture as read_architecture
    from .loading.init_tensors import load_init_tensors as load_init_tensors
    from .loading.populating import load_weights as load_weights
    from .loading.populating import populate_from_init as populate_from_init
    from .loading.proof import Arrival as Arrival
    from .loading.proof import Loaded as Loaded
    from .opening import open_trace as open_trace
    from .pretraining.building import build_trainer_with_init as build_trainer_with_init
    from .records import Record as Record
    from .sensitivity import Power as Power
    from .sensitivity import power as power
    from .sites import Site as Site
    from .stages import SavePlan as SavePlan
    from .store.writer import Writer as Writer
    from .sweeping.sweeps import sweep as sweep
    from .taps import tap as tap
    from .traces import Trace as Trace
    from .tracing import estimate as estimate
    from .tracing import trace as trace
    from .tracing import trace_grads as trace_grads
    from .tracing import trace_weights as trace_weights
    from .tracing import traced_grads as traced_grads

_HOME = {
    "Architecture": "loading.architecture",
    "Arrival": "loading.proof",
    "Calibration": "capture.calibration",
    "CaptureError": "errors",
    "CaptureWarning": "errors",
    "Estimate": "capture.estimate",
    "FirstdriftError": "errors",
    "FormatError": "errors",
    "Loaded": "loading.proof",
    "NotATraceError": "errors",
    "NotFoundError": "errors",
    "PairRow": "compare.pair_rows",
    "Power": "sensitivity",
    "Record": "records",
    "Result": "compare.result",
    "SavePlan": "stages",
    "SelectionError": "errors",
    "Site": "sites",
    "SiteError": "errors",
    "StageError": "errors",
    "StorageError": "errors",
    "Trace": "traces",
    "TraceExistsError": "errors",
    "TraceInUseError": "errors",
    "Verdict": "compare.result",
    "VersionError": "errors",
    "WeightsError": "errors",
    "Writer": "store.writer",
    "assert_same": "comparison",
    "build_trainer_with_init": "pretraining.building",
    "calibrate": "calibration",
    "check": "checking",
    "compare_pairs": "comparison",
    "diff": "comparison",
    "estimate": "tracing",
    "load_init_tensors": "loading.init_tensors",
    "load_weights": "loading.populating",
    "maybe_save": "aprt",
    "open_trace": "opening",
    "output_path": "aprt",
    "populate_from_init": "loading.populating",
    "power": "sensitivity",
    "read_architecture": "loading.architecture",
    "read_stage_file": "aprt",
    "sweep": "sweeping.sweeps",
    "tap": "taps",
    "trace": "tracing",
    "trace_grads": "tracing",
    "trace_weights": "tracing",
    "traced_grads": "tracing",
    "write_stage_file": "aprt",
}

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
