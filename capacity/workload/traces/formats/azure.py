"""Azure's LLM inference traces: calendar times to a tenth of a microsecond."""

from capacity.workload.traces.table import CsvSchema, table_format

FORMAT = table_format(
    CsvSchema(
        name="azure",
        arrival="TIMESTAMP",
        prompt="ContextTokens",
        output="GeneratedTokens",
        calendar=True,
        from_first=True,
    ),
    title="Azure",
)
