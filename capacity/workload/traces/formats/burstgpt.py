"""BurstGPT's tables: seconds of an arbitrary clock, failed requests logged with 0 tokens."""

from capacity.workload.traces.table import CsvSchema, table_format

FORMAT = table_format(
    CsvSchema(
        name="burstgpt",
        arrival="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        session="Session ID",
        from_first=True,
        skip_empty_answers=True,
    ),
    title="BurstGPT",
)
