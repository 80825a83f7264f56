"""Final norm, output head, and each slot's own draw."""
