"""Language models that learn from people's text and keep its secrets."""
