"""A worker in a pod of a Kubernetes cluster: what may be asked of the pod, what it is made of, and one run in it."""
