"""Networks, tokenizers, weights and devices."""
