"""What people read: pure functions from a result to text. Nothing here measures, judges or opens a file."""

from .text import head, render

__all__ = ["head", "render"]
