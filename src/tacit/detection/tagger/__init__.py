"""A tagger of the user's own: a linear-chain CRF."""
