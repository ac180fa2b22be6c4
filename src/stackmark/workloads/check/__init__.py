"""The workload family `check/`: does a device compute at all, and rightly?"""
