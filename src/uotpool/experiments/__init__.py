"""Data sets, models, protocols and runs behind the tables of the paper."""
