"""Training to a target quality: how long until a model is as good as asked."""
