"""Watch results and GPUs for months: metrics for Prometheus, alert rules, dashboards, manifests."""
