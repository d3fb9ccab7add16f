"""The checkpoints of all tasks, under the name by which the image task has always imported them.

Its imports count in the fingerprints of stored runs: with others, all of those would have to be run again.
"""

from uotpool_experiments.tasks.checkpoints import folder, read, remove, write

__all__ = ["folder", "read", "remove", "write"]
