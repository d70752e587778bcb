"""Rows on their way in and out: sources, values, ids, rejects, exports."""
