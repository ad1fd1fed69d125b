"""Promises made before looking: a plan, its dry run, its price, and what runs spent together."""
