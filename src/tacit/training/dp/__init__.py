"""The DP room: per-owner clipping, Poisson sampling, noise. It sees no text."""
