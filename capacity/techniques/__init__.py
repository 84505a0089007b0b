"""The techniques of the field, each as a computed comparison: what it saves, what it costs, when it pays.

`prefix_cache` hit rates and provider discounts; `quantize` formats side by side; `kv` caches by attention kind and
context; `attention_io` naive against tiled attention; `scaling` parallelism; `engine_table` engines side by side.
"""
