"""Processes that begin with torch and the tasks loaded, in milliseconds: forked from a server that has them.

The server has done nothing but import, so its children are as new as processes that load all of it for seconds.
They have the environment that the server began with.
"""

from __future__ import annotations

import multiprocessing

PRELOADED = ["experiments.tests.tasks.test_graph_resume", "experiments.tests.tasks.test_image_resume"]
METHOD = "forkserver"

multiprocessing.set_forkserver_preload(PRELOADED)
CONTEXT = multiprocessing.get_context(METHOD)
