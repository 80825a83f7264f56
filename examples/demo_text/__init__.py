"""The parts of the demo model's text: words, plots, stories, talk, tasks, code, rhymes, and documents of each kind."""
