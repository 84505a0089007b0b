"""Worker processes and clusters that evaluate candidates."""
