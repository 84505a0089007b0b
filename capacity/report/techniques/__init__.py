"""The techniques' answers as tables for people; JSON and CSV are the records themselves."""
