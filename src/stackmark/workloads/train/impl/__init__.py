"""The implementation of `train/`: networks, steps and data, on the framework."""
