"""Answers as people read them: tables, charts, HTML, launch files, schemas. The one place that makes display units.

In: records of `answers`, `techniques` and `planning`, in SI units. Out: text, CSV, JSON schemas, plotly figures, files
to launch a deployment with. Nothing here computes an answer. `tables` prints any record by its view (`views`), or by
the module of its kind, on the `layout` that they share. Start reading at `tables`, then `views.view` and `display`.
"""
