"""Tables of stored runs."""
