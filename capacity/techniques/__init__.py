"""Computed comparisons of optimisation techniques: what each one saves, what it costs, and when it pays off.

In: a model, a pool or a trace, and the technique's own settings. Out: a frozen record in SI units, whose `to_dict()`
is the JSON of the command. Each technique has one module with its record, function and formulas. Formulas that are
long or shared have their own modules (`kv_bytes`, `long_context`, `batch_waste`, `waste`, `prefix_cache`,
`quantization_methods`). `registry` lists the functions and imports none of them; the command line, the schemas and the
public names are derived from it. `glossary` defines the field's terms. Start reading at `registry`, then
`attention_io`, the smallest module.
"""
