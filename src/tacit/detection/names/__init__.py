"""Names in running text and mail: a small network, and what the form of mail gives away."""
