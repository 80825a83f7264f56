"""A file of prompts in, a file of results out: records, journal, and the loop between them. No torch."""
