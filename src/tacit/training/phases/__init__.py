"""A run from its settings to its folder: context, public start, loop, checkpoints, session."""
