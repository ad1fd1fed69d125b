"""How a database gets from each version of the tables to the next."""
