"""Why requests run where they run: records, what would change them, runs decided again."""
