"""torchmetrics: figures of merit, as functions."""

from ..case import Calls, Case, Truth, at, normal

PATH = "torchmetrics.functional"


def metric(name, buggy, fixed, which, inputs, truth=None, source="", **settings):
    def make(release):
        function = release.find(f"{PATH}.{which}")
        return Calls(lambda *given: function(*given, **settings))

    return Case(name, "torchmetrics", buggy, fixed, make, inputs, truth, source)


def images(height=24, width=20):
    return normal(2, 3, height, width, seed=1).sigmoid(), normal(2, 3, height, width, seed=2).sigmoid()


CASES = [
    metric(
        "ergas-ratio-multiplied",
        "1.3.2",
        "1.4.0",
        "image.ergas:error_relative_global_dimensionless_synthesis",
        images,
        Truth(
            (at("", "out*"),),
            ("scale",),
            "the score is multiplied with the ratio of resolutions (4), not divided by it: it is 16 times as large",
            (r"\b16(\.0)?\b", "div"),
        ),
        "1.4.0: 100 / ratio",
        ratio=4,
    ),
    metric(
        "sliding-rmse-not-in-place",
        "1.4.2",
        "1.4.3",
        "image.rmse_sw:root_mean_squared_error_using_sliding_window",
        images,
    ),
]
