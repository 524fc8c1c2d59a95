"""The ways in which an APR file is refused, named as the format's own library names them."""

from __future__ import annotations

from ...errors import FormatError


class AprError(FormatError):
    """An APR file is not what it claims to be; the message begins with the place and the kind."""

    @classmethod
    def at(cls, place: object, sentence: str) -> AprError:
        """The error at a place."""
        return cls(f"{place}: {cls.__name__}: {sentence}")


class InvalidMagic(AprError):  # noqa: N818
    """The first four bytes are not those of APR version 2."""


class InvalidHeader(AprError):  # noqa: N818
    """The header is too short, contradicts the file, or asks for a layout that is not supported."""


class ChecksumMismatch(AprError):  # noqa: N818
    """The header or the file is not what was written."""


class MetadataError(AprError):
    """The metadata is not JSON, or a key of it has the wrong type."""


class InvalidTensorIndex(AprError):  # noqa: N818
    """An entry of the index is impossible, out of order, there twice, or out of the file's bounds."""
