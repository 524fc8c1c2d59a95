"""Proofs for what others add to firstdrift: a conformance suite for formats, and hypothesis strategies.

A format of your own is proven in one test file:

    from firstdrift.testing import FormatConformance

    class TestMyFormat(FormatConformance):
        format = my_format            # the module or object with NAME, recognise, read and write
        suffix = ".mine"              # of a path it writes to
        dtypes = ("f32", "f64")       # and whatever else it cannot carry, see the class

        def lying_files(self, directory):
            ...                       # files of a few bytes whose headers claim gigabytes

It needs pytest and hypothesis, which `firstdrift[dev]` brings.
"""

from .conformance import FormatConformance as FormatConformance
from .samples import awkward_array as awkward_array
from .samples import bits as bits
from .samples import memory_trace as memory_trace

__all__ = ["FormatConformance", "awkward_array", "bits", "memory_trace"]
