"""The layer in the conventions of other packages. Importing a module here imports its package."""
