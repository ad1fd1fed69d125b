"""Who is protected: the graph of records, users and entities, and contribution bounding on it."""

from tacit.owners.graph import FORMAT, VERSION, Counts, Ints, Mask, Owners, describe, most_shared

__all__ = ["FORMAT", "VERSION", "Counts", "Ints", "Mask", "Owners", "describe", "most_shared"]
