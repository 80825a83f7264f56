"""The engine: token ids in, token ids out. Knows no tokenizer, no terminal and no command line."""
