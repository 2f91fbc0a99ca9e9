"""The report: one HTML file that fetches nothing; it can be read, and printed, without scripts."""
