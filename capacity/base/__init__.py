"""Code that all packages share: errors, the base class of specs, file reading, flags, text and worker processes.

Input and output are plain values. Nothing here depends on a model, a GPU or an engine. Start reading at `errors`,
whose docstring shows the tree of exceptions, then `keywords`, which turns the fields of a spec into flags and keywords.
"""
