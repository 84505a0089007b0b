"""Our own table: `arrival_s,prompt_tokens,output_tokens`, and what else a workload may have."""

from capacity.workload.traces.table import CsvSchema, table_format

FORMAT = table_format(
    CsvSchema(
        name="plain",
        arrival="arrival_s",
        prompt="prompt_tokens",
        output="output_tokens",
        session="session",
        optional=("priority", "after_request", "think_s", "max_tokens", "adapter"),
    ),
    title="plain CSV",
)
