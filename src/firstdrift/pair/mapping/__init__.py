"""Mapping files: which candidate tensor stands for which reference site, and what makes the two comparable."""

from .lines import Line, Mapping, Rule, Target
from .parse import parse_map, read_map
from .patterns import Pattern, parse_pattern
from .write import write_map

__all__ = ["Line", "Mapping", "Pattern", "Rule", "Target", "parse_map", "parse_pattern", "read_map", "write_map"]
