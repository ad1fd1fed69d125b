"""Using what was trained: scores beside baselines, predictions, generation, groups."""
