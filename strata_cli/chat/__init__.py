"""The conversation behind `strata chat`: its state, its turns, its slash commands. No torch, no terminal."""
