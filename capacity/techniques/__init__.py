"""The techniques of the field, each as a computed comparison: what it saves, what it costs, when it pays.

In: a model, a pool or a trace, and the technique's own settings. Out: a frozen record in SI units, whose `to_dict()` is
the verb's JSON. One module a question: its record, its function, its formulas; where these are many, or others need
them, apart (`kv_bytes`, `long_context`, `batch_waste`, `waste`, `prefix_cache`,
`quantization_methods`). `registry` names the questions and imports none: the command line, the schemas and the public
names come from it. `glossary` has the field's words. Start reading at `registry`, then `attention_io`, the smallest.
"""
