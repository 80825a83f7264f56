"""What several tests need: random checkpoints and the reference models that read them."""
