"""Differential privacy behind the Trainer of transformers, by the engine of `tacit train`."""

from tacit.hf.trainer import PrivateTrainer

__all__ = ["PrivateTrainer"]
