"""Show what was found and promised: plots now, reports later."""
