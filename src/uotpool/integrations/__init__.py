"""The layer in the conventions of other packages; each module imports its package when it is imported."""
