"""The measurements behind the documentation: `make studies`, or `python -m examples.studies NAME`."""
