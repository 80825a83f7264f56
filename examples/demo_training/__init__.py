"""Training code of the demo model: a small `qwen3_5_moe` with one MTP layer, in plain torch."""
