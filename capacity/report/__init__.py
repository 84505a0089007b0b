"""Rendering of answers: tables, charts, HTML, launch files and schemas. The only package that converts to display
units.

Input: records of `answers`, `techniques` and `planning`, in SI units. Output: text, CSV, JSON schemas, plotly figures
and files that launch a deployment. Nothing here computes an answer. `tables` prints any record by its view (`views`),
on the `layout` that all views share. Start reading at `tables`, then `views.view` and `display`.
"""
