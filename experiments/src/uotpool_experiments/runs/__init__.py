"""Turn choices into stored runs: specs, sweeps, executors and the store."""
