"""The command line: it parses flags, calls the library, and prints the answer.

Input: arguments; flags may have vLLM's spellings. Output: text on stdout and an exit code (0 answered, 1 does not fit
or SLO unmet, 2 invalid input). Flags are generated from the fields of the specs in `capacity.deployment`. Expensive
imports are inside the verbs (commands), so that `--help` is fast. Start reading at `main`, then `options`.
"""
