"""The whole product from Python: objects or paths in, objects that show themselves out."""
