"""Reading a step-statistics file back: what happened, what kept it from being faster, what to try. No torch."""
