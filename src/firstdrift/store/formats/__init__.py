"""Formats of traces, one module each: bytes in, validated records out, and back.

A format is a module (or any object) with

    NAME                                          its name on the command line
    recognise(path) -> bool                       whether this path is one; cheap, and never raises
    read(path) -> Trace                           only FirstdriftErrors come out
    write(trace, path, *, overwrite, advance)     returns sentences about what could not be carried

Third parties add theirs as an entry point in the group `firstdrift.formats`, named like the format, and prove
it with `firstdrift.testing.FormatConformance`.
"""

WITHOUT_SHAPES = "aprt"  # the format that holds numbers and not their shape
