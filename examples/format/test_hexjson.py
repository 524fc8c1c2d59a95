"""Tests the format in hexjson.py: pytest test_hexjson.py"""

import hexjson

from firstdrift.testing import FormatConformance


class TestHexJson(FormatConformance):
    format = hexjson
    suffix = ".hex.json"
    dtypes = ("f32",)
    details = False  # optional keys, lines without values, the header

    def lying_files(self, directory):
        path = directory / "huge.hex.json"
        path.write_text('{"tensors":[{"phase":"fwd","name":"a","dtype":"f32","shape":[4000000000],"hex":"00"}]}')
        return [path]
