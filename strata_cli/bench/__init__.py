"""Settings against settings on the same prompts: arms, the order they run in, figures, reports."""
