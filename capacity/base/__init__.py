"""Shared basics: errors, the base of specs, reading of fields, options as keywords, text, processes.

Input and output are plain values; nothing here depends on a model, a GPU or an engine. Start reading at `errors`,
whose docstring shows the tree of exceptions, then `keywords`, which turns the fields of a spec into flags and
keywords.
"""
