"""The command line: parse, call the library, print.

In: arguments, vLLM's spellings included. Out: text on stdout and an exit code (0 answered, 1 does not fit or SLO
unmet, 2 bad input). Flags are made from the fields of the specs in `capacity.deployment`. Heavy imports are inside the
verbs, so that `--help` is fast. Start reading at `main`, then `options`.
"""
