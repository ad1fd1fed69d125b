"""What is asked of a model: one loss for each record, and how well it did."""
