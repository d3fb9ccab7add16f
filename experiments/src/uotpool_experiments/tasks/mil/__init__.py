"""Multi-instance learning."""
