"""The HTTP service and the MCP server, and the job runner that the service and the dashboard share.

In: requests of programs and agents (a verb of the registry, with its options as JSON). Out: the answer as JSON, in the
format of the command line. Verbs run in worker processes with limits of CPU time and memory. Start reading at
`verb_requests`, then `http_service` and `mcp_server`; `jobs` runs the work.
"""
