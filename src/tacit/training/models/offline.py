"""Hugging Face libraries without notices, without a network, and without global randomness."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers

# Whoever loads these libraries after us asks no network either; our own calls say so each time.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the notices and bars that a library prints for its own users."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """New weights from a seed, and everybody else's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
