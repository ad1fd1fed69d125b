"""The arithmetic of guarantees: it knows no text and no model.

Read in this order: `events` (facts about releases), `domination` (from one release to a
dominating pair), `accounting` (what many releases cost together).
"""
