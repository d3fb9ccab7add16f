"""From choices to stored runs: specs, sweeps, executors, the store and the fingerprint of the code."""
