"""Rendering of answers: tables, charts, HTML, launch files, schemas. Only this package converts to display units.

Input: records of `answers`, `techniques` and `planning`, in SI units. Output: text, CSV, JSON schemas, plotly figures
and files that launch a deployment. Nothing here computes an answer. `tables` prints any record with its view
(`views`); all views share `layout`. Start reading at `tables`, then `views.view` and `display`.
"""
