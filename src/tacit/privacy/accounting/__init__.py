"""The accountant: from events to epsilon at delta."""
