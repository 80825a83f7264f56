"""strata: four requests at once on a quantized mixture-of-experts model with its MTP head."""

__version__ = "0.1.0"
