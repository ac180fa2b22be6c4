"""Functional tests: does the cluster handle pods and devices as it should?"""
