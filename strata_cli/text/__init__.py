"""Between text and token ids: tokenizer, chat template, stop strings, thinking. No torch."""
