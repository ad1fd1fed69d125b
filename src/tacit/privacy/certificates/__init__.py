"""Certificates: what is promised, about whom, in words and as a file."""
