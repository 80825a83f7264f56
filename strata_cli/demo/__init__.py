"""The model that strata brings along, for trying, teaching and testing."""

from pathlib import Path


def model_path() -> Path:
    """Its directory: an ordinary checkpoint with tokenizer, chat template and model card."""
    return Path(__file__).resolve().parent / "model"
