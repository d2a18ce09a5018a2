"""The report of a run of ``signalbox bench``: HTML, Markdown, JSON, and any two runs or variants beside each other."""
