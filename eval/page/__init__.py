"""All runs below a folder on one page: what was measured, how it was learned, and what the models make of videos."""
