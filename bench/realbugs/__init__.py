"""Bugs that were really made and fixed, replayed from published releases: the buggy release against the fixed one."""
