"""The workload family `train/`: one optimizer step after another, on one device."""
