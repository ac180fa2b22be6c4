"""Functional checks: does the cluster do with pods, and with devices, what it should?"""
