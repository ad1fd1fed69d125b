"""The papers' own formulas, printed tables and counterexamples; nothing here is a bound."""
