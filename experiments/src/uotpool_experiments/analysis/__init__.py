"""Statistics over stored runs: samples, tests, ranks, and the numbers that the paper published."""
