"""A local page on which a person moves the weights and watches the plan: `uotpool explore`."""

HOST = "127.0.0.1"
PORT = 8050
