"""The process that runs one workload: a task comes in, events go out. Only the layer around it differs between arms."""
