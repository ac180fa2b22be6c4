"""Run a worker in a pod of a Kubernetes cluster: the pod's options, its parts, and one run in it."""
