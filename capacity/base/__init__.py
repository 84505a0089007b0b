"""What every room may use: errors, the base of specs, reading of fields, options as keywords, text, processes.

In and out: plain values. Nothing here knows a model, a GPU or an engine. Start reading at `errors`, whose docstring
draws the one tree of exceptions, then `keywords`, which makes flags and keywords of the fields of a spec.
"""
