"""The command line: parse, ask the library, print.

In: arguments, vLLM's spellings included. Out: text on stdout, an exit code (0 answered, 1 does not fit or SLO unmet,
2 bad input). Flags are made from the fields of the specs in `capacity.deployment`; heavy imports live inside the
verbs, so that `--help` is instant. Start reading at `main`, then `options`.
"""
