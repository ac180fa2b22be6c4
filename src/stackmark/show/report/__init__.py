"""A report of one experiment, for people: one HTML file (html.py), Markdown (markdown.py), pictures (charts/).

All of it is made from an Examined, which is plain data: whoever has one can make a report, without a ledger.
"""

from stackmark.verdict.examined import Examined

__all__ = ["Examined"]
