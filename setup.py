"""The native kernels; everything else about the project is in pyproject.toml."""

import os

from setuptools import Extension, setup

# No fused multiply-add: sums must round as numpy's do. Only GCC and Clang have the vector types the kernel
# uses; elsewhere, or without a compiler, the plain numpy kernel serves.
FLAGS = [] if os.name == "nt" else ["-O3", "-std=c11", "-ffp-contract=off", "-Wno-psabi"]

setup(
    ext_modules=[
        Extension(
            "firstdrift.kernels.native",
            sources=["src/firstdrift/kernels/native.c"],
            depends=["src/firstdrift/kernels/pair.h", "src/firstdrift/kernels/passes.h"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "firstdrift.kernels.checksum",
            sources=["src/firstdrift/kernels/checksum.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "firstdrift.kernels.noise",
            sources=["src/firstdrift/kernels/noise.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "firstdrift.kernels.profile",
            sources=["src/firstdrift/kernels/profile.c"],
            extra_compile_args=[*FLAGS, *(["-fno-trapping-math"] if FLAGS else [])],  # else no loop of it has vectors
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "firstdrift._guard",
            sources=["src/firstdrift/guard.c"],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
