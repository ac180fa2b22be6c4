"""Workloads: definitions, which import no framework, and under `impl` their implementations, which do."""
