"""Detection over HTTP."""
